"""A make-believe accelerator on the CPU, to find tensors mixed between CPU and GPU and to count waits for the GPU.

A tensor of the device "gpux" is a wrapper around a CPU tensor. Every operation on it is computed on the CPU; an
operation that is given tensors of both devices raises `Mixed` with the operation and the line of the project, where a
GPU would refuse it. Operations for which the host would wait until the GPU is done are counted by line in `WAITS`.

Call `install` before anything of the project is imported, and use a process of its own for it: torch's name for a
device cannot be taken back, and some functions of torch are replaced. It shows no streams, kernels, number types that a
GPU treats differently, several devices or NCCL.
"""

import functools
import sys
import threading
from collections import Counter
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "gpux"
ROOT = Path(__file__).resolve().parents[1]
OURS = (str(ROOT / "verizero"), str(ROOT / "tests"))
aten = torch.ops.aten
READS = {aten.index.Tensor}
WRITES = {aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
COPIES = {aten._to_copy.default, aten.copy_.default}
SIZED_BY_VALUES = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten.masked_scatter_backward.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.bincount.default,
}
"""Operations whose result has a size that depends on the values, which the host must know."""

WAITS = Counter()
"""(file:line of the project, the cause) -> the number of times that a host would have waited there for its GPU."""


class Mixed(RuntimeError):
    """An operation was given tensors of both devices."""


ANSWERS = {
    "is_available": True,
    "is_initialized": True,
    "device_count": 1,
    "current_device": 0,
    "get_amp_supported_dtype": [torch.bfloat16],
    "_is_in_bad_fork": False,
    "manual_seed_all": None,
    "get_rng_state": torch.zeros(1),
    "set_rng_state": None,
    "synchronize": None,
    "_lazy_init": None,
}
"""The functions that torch calls on the module of a device, each with its answer."""


class Module:
    """The module of the device."""

    def __getattr__(self, name):
        if name not in ANSWERS:
            raise AttributeError(name)
        return lambda *_, **__: ANSWERS[name]


class Fake(torch.Tensor):
    """A tensor of the device, with its values in the CPU tensor `inner`."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class Mode(TorchDispatchMode):
    """Passes every operation to `run`, also those on CPU tensors and those that make a tensor on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is traced here, and every operation would pass through a wrapper against that


def names_device(device):
    """True if `device` is the make-believe one."""
    return device is not None and torch.device(device).type == NAME


def on_cpu(x):
    """The CPU tensor inside `x`; `x` itself if it is not of the device."""
    return x.inner if type(x) is Fake else x


def flat_of(args):
    """The arguments of an operation and the items of its lists, which hold no lists."""
    flat = []
    for x in args:
        if isinstance(x, (list, tuple)):
            flat += x
        else:
            flat.append(x)
    return flat


def each(change, x):
    """`change` of an argument or result of an operation, or of each item of one that is a list."""
    return type(x)(map(change, x)) if type(x) in (list, tuple) else change(x)


@functools.cache
def is_mutable(func):
    """True if the operation writes to one of its arguments."""
    return bool(func._schema.is_mutable)


@functools.cache
def may_wait(func):
    """True if the host waits for the operation in some case."""
    known = {aten._local_scalar_dense.default, aten.repeat_interleave.Tensor} | SIZED_BY_VALUES
    return func in known | COPIES | READS | WRITES


def line():
    """The innermost line of the project's own code that is running, as file:line."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS) and name != __file__:
            return f"{Path(name).resolve().relative_to(ROOT).as_posix()}:{frame.f_lineno}"
        frame = frame.f_back
    return "a backward"  # of an operation of the project, in a thread of autograd without lines of Python


def run(func, args, kwargs):
    """Compute one operation on the CPU. Raises: Mixed."""
    flat = flat_of((*args, *kwargs.values()))
    has_fakes = Fake in map(type, flat)
    to_device, asked = has_fakes, kwargs.get("device")
    if asked is not None:
        to_device, kwargs = names_device(asked), kwargs | {"device": torch.device("cpu")}
    if not has_fakes and not to_device:
        return func(*args, **kwargs)
    if func is aten.copy_.default:
        to_device = isinstance(args[0], Fake)
    if has_fakes:
        refuse_mixture(func, args, flat)
    if may_wait(func):
        count_wait(func, args, has_fakes, to_device)
    inner_args = tuple([each(on_cpu, x) for x in args])
    inner_kwargs = {name: each(on_cpu, x) for name, x in kwargs.items()} if kwargs else kwargs
    if func is aten.histc.default and not inner_args[0].is_floating_point():  # a GPU counts integers, the CPU does not
        inner_args = (inner_args[0].float(), *inner_args[1:])
    out = func(*inner_args, **inner_kwargs)
    # An operation in place returns the very tensor that it was given.
    written = {id(on_cpu(x)): x for x in flat if isinstance(x, torch.Tensor)} if is_mutable(func) else {}

    def wrapped(x):
        if id(x) in written:
            return written[id(x)]
        return Fake(x) if to_device and isinstance(x, torch.Tensor) and not isinstance(x, Fake) else x

    return each(wrapped, out)


def refuse_mixture(func, args, flat):
    """Raise Mixed where CUDA raises: tensors of both devices, numbers of no dimension and indices excepted."""
    if not any(type(x) is not Fake and isinstance(x, torch.Tensor) for x in flat) or func in COPIES:
        return
    if func in READS or func in WRITES:
        # A tensor of the GPU takes indices of the CPU; one of the CPU takes none of the GPU.
        values = [args[2]] if func in WRITES else []
        indices = [] if isinstance(args[0], Fake) else args[1]
        flat = [args[0], *values, *indices]
    plain = any(isinstance(x, torch.Tensor) and not isinstance(x, Fake) and x.dim() > 0 for x in flat)
    if plain and any(isinstance(x, Fake) for x in flat):
        raise Mixed(f"{func} mixes {NAME} and cpu at {line()}")


def count_wait(func, args, has_fakes, to_device):
    """Count the operation in `WAITS` if the host of a GPU would wait for it."""
    cause = None
    if func in COPIES:
        source = args[1] if func is aten.copy_.default else args[0]
        if isinstance(source, Fake) != to_device:
            cause = "copy to the device" if to_device else "copy to the host"
    elif not has_fakes:
        return
    elif func is aten._local_scalar_dense.default:
        cause = "value read by the host"
    elif func in SIZED_BY_VALUES or (func is aten.repeat_interleave.Tensor and len(args) == 1):
        cause = "size that depends on values"
    elif func in READS or func in WRITES:
        by_mask = any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1])
        cause = "boolean index" if by_mask else None
    if cause is not None:
        WAITS[line(), cause] += 1


def install():
    """Register the device and replace what torch does past its dispatcher. Call it once, in a process of its own."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    torch.inference_mode = torch.no_grad  # wrappers cannot be inference tensors
    replace_making()
    replace_moving()
    replace_indexing()
    replace_files()
    begin = threading.Thread.run

    def run_in_mode(thread):
        with Mode():  # a mode is of one thread, and generation ahead of the update has a thread of its own
            begin(thread)

    threading.Thread.run = run_in_mode


def replace_making():
    """Tensors of Python values, and Python values of tensors."""
    tensor, as_tensor = torch.tensor, torch.as_tensor
    new_tensor, tolist = torch.Tensor.new_tensor, torch.Tensor.tolist

    def made(data, *args, device=None, **kwargs):
        out = tensor(on_cpu(data), *args, **kwargs)
        if not names_device(device):
            return out
        WAITS[line(), "copy to the device"] += 1
        return Fake(out)

    def made_like(x, data, *args, dtype=None, **kwargs):
        if isinstance(x, Fake):
            return made(data, dtype=dtype or x.dtype, device=NAME)
        return new_tensor(x, data, *args, dtype=dtype, **kwargs)

    def taken(data, *args, device=None, **kwargs):
        if isinstance(data, Fake):
            return data
        return made(data, *args, device=device, **kwargs) if names_device(device) else as_tensor(data, *args, **kwargs)

    def listed(x):
        if isinstance(x, Fake):
            WAITS[line(), "copy to the host"] += 1
        return tolist(on_cpu(x))

    torch.tensor, torch.as_tensor = made, taken
    torch.Tensor.new_tensor, torch.Tensor.tolist = made_like, listed


def replace_moving():
    """`Module.to`, which sets the data of parameters: torch refuses that between kinds of tensors."""
    to = torch.nn.Module.to

    def moved(model, *args, **kwargs):
        places = [x for x in (*args, *kwargs.values()) if isinstance(x, (str, torch.device))]
        if not any(map(names_device, places)):
            return to(model, *args, **kwargs)
        known = {}  # tied weights stay tied
        for module in model.modules():
            for name, p in module._parameters.items():
                if p is not None:
                    fake = p.detach() if isinstance(p, Fake) else Fake(p.detach())
                    known.setdefault(id(p), torch.nn.Parameter(fake, p.requires_grad))
                    module._parameters[name] = known[id(p)]
            buffers = {n: b if isinstance(b, Fake) else Fake(b) for n, b in module._buffers.items() if b is not None}
            module._buffers.update(buffers)
        return model

    torch.nn.Module.to = moved


def replace_indexing():
    """Indices that are lists, and numbers that are assigned to a part of a tensor."""
    tensor, get, put = torch.tensor, torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def on_device(x, index):
        if not isinstance(x, Fake):
            return index
        if isinstance(index, tuple):
            return tuple(tensor(i, device=NAME) if isinstance(i, list) else i for i in index)
        return tensor(index, device=NAME) if isinstance(index, list) else index

    def assign(x, index, value):
        if isinstance(x, Fake) and not isinstance(value, torch.Tensor):
            value = Fake(torch.full((), value, dtype=x.dtype))  # a number is filled in, nothing is copied
        put(x, on_device(x, index), value)

    torch.Tensor.__getitem__ = lambda x, index: get(x, on_device(x, index))
    torch.Tensor.__setitem__ = assign


def replace_files():
    """Files of tensors, which hold CPU tensors: `torch.save`, `torch.load`, and a model's folder."""
    from transformers import PreTrainedModel

    save, load, save_pretrained = torch.save, torch.load, PreTrainedModel.save_pretrained

    def plain(x):
        return tree_map(lambda t: t.inner.detach().clone() if isinstance(t, Fake) else t, x)

    def loaded(file, *args, map_location=None, **kwargs):
        out = load(file, *args, map_location="cpu", **kwargs)
        if not names_device(map_location):
            return out
        return tree_map(lambda t: Fake(t) if isinstance(t, torch.Tensor) else t, out)

    @functools.wraps(save_pretrained)
    def saved(model, folder, *args, **kwargs):
        if not any(isinstance(p, Fake) for p in model.parameters()):
            return save_pretrained(model, folder, *args, **kwargs)
        # A folder of a module with the same weights on the CPU: safetensors reads the memory of a tensor.
        twin = type(model)(model.config)
        twin.load_state_dict(plain(dict(model.state_dict())))
        twin.to(model.dtype)
        if hasattr(model, "generation_config"):
            twin.generation_config = model.generation_config
        return save_pretrained(twin, folder, *args, **kwargs)

    torch.save = lambda thing, file, *args, **kwargs: save(plain(thing), file, *args, **kwargs)
    torch.load = loaded
    PreTrainedModel.save_pretrained = saved


def waits_of(function):
    """The waits, by line and cause, of one call of `function`."""
    before = WAITS.copy()
    function()
    return WAITS - before
