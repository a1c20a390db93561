"""The parts of `benchmarks/gpu.py`: what is proven and what is measured on a GPU."""
