"""Tensors of NumPy and of torch, where it is installed, for the tests of kvloom.flashinfer; pools of pages; attention in FlashInfer's terms."""

import importlib.util

import numpy as np
import pytest
import reference

LN2 = np.log(2.0)
PAGE, KV_HEADS, HEADS, DIM = 4, 2, 4, 32


class NumPy:
    name = "numpy"

    def tensor(self, x, dtype="float32"):
        if dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            import ml_dtypes

            return np.asarray(x).astype(getattr(ml_dtypes, dtype))
        return np.asarray(x).astype(dtype)

    def host(self, x):
        return np.asarray(x).astype(np.float64)

    def empty(self, shape, dtype="float32"):
        return self.tensor(np.full(shape, 7.0), dtype)

    def dtype(self, name):
        return name

    def permute(self, x, *axes):
        return x.transpose(axes)


class Torch:
    name = "torch"

    def __init__(self):
        import torch

        self.torch = torch

    def tensor(self, x, dtype="float32"):
        return self.torch.from_numpy(np.array(x)).to(getattr(self.torch, dtype))

    def host(self, x):
        return x.to(self.torch.float64).numpy()

    def empty(self, shape, dtype="float32"):
        return self.torch.full(shape, 7.0).to(getattr(self.torch, dtype))

    def dtype(self, name):
        return getattr(self.torch, name)

    def permute(self, x, *axes):
        return x.permute(axes)


frameworks = ["numpy", pytest.param("torch", marks=pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"))]


def framework_of(name):
    return NumPy() if name == "numpy" else Torch()


class Pages:
    """A pool of pages, requests of some lengths with shuffled page ids, their CSR tables, and their keys one after the other."""

    def __init__(self, rng, fw, kv_len, layout="NHD", dtype="float32", page=PAGE, kv_heads=KV_HEADS, dim=DIM, dim_vo=None):
        self.kv_len, self.fw, self.layout, self.page, self.kv_heads = list(kv_len), fw, layout, page, kv_heads
        counts = [-(-n // page) for n in self.kv_len]
        self.num_pages = sum(counts) + 3
        ids = rng.permutation(self.num_pages)[: sum(counts)]
        begins = np.cumsum([0, *counts])
        self.ids_of = [ids[a:b] for a, b in zip(begins, begins[1:])]
        self.k_np, self.v_np = (rng.standard_normal((self.num_pages, page, kv_heads, d), dtype=np.float32) for d in (dim, dim_vo or dim))
        order = (0, 1, 2, 3) if layout == "NHD" else (0, 2, 1, 3)
        self.k, self.v = (fw.tensor(np.ascontiguousarray(x.transpose(order)), dtype) for x in (self.k_np, self.v_np))
        self.k_np, self.v_np = (fw.host(fw.permute(x, *order)) for x in (self.k, self.v))
        self.indptr, self.indices = fw.tensor(begins, "int32"), fw.tensor(ids, "int32")
        self.last = fw.tensor([n - (c - 1) * page if c else 0 for n, c in zip(self.kv_len, counts)], "int32")

    def keys(self, r):
        """k, v [kv_len, heads, dim] of a request."""
        return [x[self.ids_of[r]].reshape(-1, self.kv_heads, x.shape[-1])[: self.kv_len[r]] for x in (self.k_np, self.v_np)]


def attention(q, k, v, **features):
    """reference.attention with the LSE in base 2."""
    o, lse = reference.attention(q, k, v, **features)
    return o, lse / LN2


def rows(rng, fw, n, dtype="float32", heads=HEADS, dim=DIM):
    return fw.tensor(rng.standard_normal((n, heads, dim), dtype=np.float32), dtype)
