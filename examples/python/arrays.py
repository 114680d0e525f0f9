"""Tensors of these programs: NumPy's in fp32 on the CPU; with --gpu torch's in bf16 on a GPU, which is all the difference between the two."""

import sys

import numpy as np

ON_GPU = "--gpu" in sys.argv
BACKEND, DTYPE = ("cuda", "bf16") if ON_GPU else ("cpu", "f32")
TOLERANCE = 3e-2 if ON_GPU else 1e-5  # between two ways to compute the same numbers of about 1

if ON_GPU:
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        sys.exit("--gpu: got no torch with a GPU, wanted one; install torch for CUDA, or leave --gpu out")


def there(x):
    """NumPy's array where tensors are: integers, masks, and numbers that stay fp32."""
    return torch.from_numpy(np.ascontiguousarray(x)).cuda() if ON_GPU else x


def tensor(x):
    """NumPy's array where tensors are, in their dtype."""
    return there(x).to(torch.bfloat16) if ON_GPU else x.astype(np.float32)


def normal(rng, *shape):
    return tensor(rng.standard_normal(shape, dtype=np.float32))


def zeros(*shape):
    return tensor(np.zeros(shape, np.float32))


def host(x):
    """As NumPy's, in fp32."""
    return x.float().cpu().numpy() if ON_GPU else x


def apart(a, b):
    """The largest difference."""
    return float(np.abs(host(a) - host(b)).max())
