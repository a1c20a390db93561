"""Faults planted in small runs, for proving what a diagnosis of a run's folder says."""
