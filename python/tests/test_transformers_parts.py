"""The parts of kvloom.transformers one by one: masks, keys in place, what a step is known by."""

import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch transformers")
pytest.importorskip("transformers", reason="transformers is not installed: pip install torch transformers")

from transformers import masking_utils  # noqa: E402
from transformers.generation.continuous_batching import PagedAttentionCache  # noqa: E402

import kvloom  # noqa: E402
import kvloom.transformers as kt  # noqa: E402
from kvloom.transformers import _generate_batch, _masks, _plans  # noqa: E402
from kvloom.transformers._dense import _ragged  # noqa: E402


def _functions():
    m = masking_utils
    yield m.causal_mask_function
    yield m.bidirectional_mask_function
    yield m.sliding_window_causal_mask_function(5)
    yield m.sliding_window_bidirectional_mask_function(4)
    yield m.and_masks(m.sliding_window_causal_mask_function(9), m.sliding_window_overlay(3))
    yield m.chunked_causal_mask_function(4, torch.zeros(3, dtype=torch.int))
    yield m.or_masks(m.causal_mask_function, lambda b, h, q, kv: (kv < 3) & (b >= 0))


FUNCTIONS = list(_functions())  # the last two are no ranges of keys


@pytest.mark.parametrize("function", FUNCTIONS, ids=["causal", "all", "window", "both sides", "two windows", "chunks", "prefix"])
def test_masks_keep_what_their_functions_keep(function):
    """attention_forward with a StepMask against float64 attention under the matrix that transformers makes: offsets, padding, every function."""
    torch.manual_seed(7)
    recognised = _masks.range_of(function) is not None
    assert recognised == (function in FUNCTIONS[:5])
    module = torch.nn.Module()
    for q_length, kv_length, q_offset, kv_offset in ((6, 6, 0, 0), (1, 9, 8, 0), (4, 12, 8, 0), (3, 7, 20, 16), (2, 16, 5, 0)):
        for padding in (None, "left", "right", "holes"):
            total = kv_offset + kv_length
            keep = torch.ones(3, total, dtype=torch.bool)
            if padding == "left":
                keep[0, : kv_offset + 2] = keep[2, : total - 1] = False
            elif padding == "right":
                keep[1, kv_offset + 3 :] = False
            elif padding == "holes":
                keep[1, kv_offset + 1] = False
            size = {"batch_size": 3, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
            given = {**size, "mask_function": function, "attention_mask": None if padding is None else keep}
            dense = masking_utils.sdpa_mask(**given, allow_is_causal_skip=False, use_vmap=not recognised)
            step = kt.attention_mask(**given, use_vmap=not recognised)
            assert step.shape == (3, 1, q_length, kv_length) and (step.bits is not None) == (not recognised or padding == "holes")
            q, k, v = (torch.randn(3, h, n, 16) for h, n in ((4, q_length), (2, kv_length), (2, kv_length)))
            with torch.no_grad():
                got, _ = kt.attention_forward(module, q, k, v, step, scaling=0.3)
            k, v = (x.double().repeat_interleave(2, 1) for x in (k, v))
            scores = (0.3 * q.double() @ k.mT).masked_fill(~dense, -torch.inf)
            weights = scores.softmax(-1).nan_to_num(0.0)  # a row that keeps nothing gives 0
            torch.testing.assert_close(got.double(), (weights @ v).transpose(1, 2), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("layout", ["contiguous", "tokens first", "room behind", "different"])
def test_keys_are_read_where_they_are(layout):
    torch.manual_seed(7)
    q = torch.randn(3, 4, 2, 16)
    if layout == "tokens first":
        k, v = (torch.randn(3, 9, 2, 16).transpose(1, 2) for _ in "kv")
    elif layout == "room behind":
        k, v = (torch.randn(3, 2, 30, 16)[:, :, :9] for _ in "kv")
    else:
        k, v = (torch.randn(3, 2, 9, 16) for _ in "kv")
        if layout == "different":
            v = v.transpose(1, 2).contiguous().transpose(1, 2)
    flat_k, flat_v, row = _ragged(k, v)
    assert (flat_k.data_ptr() == k.data_ptr() and flat_v.data_ptr() == v.data_ptr()) == (layout != "different")
    assert all(torch.equal(flat[b * row : b * row + 9], x[b].transpose(0, 1)) for flat, x in ((flat_k, k), (flat_v, v)) for b in range(3))
    with torch.no_grad():
        got, _ = kt.attention_forward(torch.nn.Module(), q, k, v)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, torch.ones(2, 9, dtype=torch.bool).tril(7), enable_gqa=True)
    torch.testing.assert_close(got, wanted.transpose(1, 2), atol=1e-5, rtol=1e-5)


class GroupCache:
    """As much of transformers' paged cache before 5.18 as a layer sees: one group of full attention."""

    block_size, layer_index_to_group_indices, sliding_windows, stride, layer = 4, {0: (0, 0)}, {0: 1}, 4, 0

    def __init__(self):
        self.key_cache, self.value_cache = ([torch.randn(10 * 4, 2, 16)] for _ in "kv")

    def rows(self):
        return self.key_cache[0], self.value_cache[0]


class Allocator:
    index, layer_type, tokens_per_page, layer_indices, block_physical_stride = 0, "full_attention", 4, [3, 7, 9], 3 * 8

    def __init__(self):
        self.cache_tensor = torch.randn(10 * 12, 2, 2, 16)


class AllocatorCache:
    """The same from 5.18 on: a block has pages of K and V for three layers, of which the second is called."""

    stride, layer = 24, 7

    def __init__(self):
        self.layer_to_allocator = {7: Allocator()}

    def rows(self):
        rows = self.layer_to_allocator[7].cache_tensor.view(-1, 2, 16)
        return rows[8:], rows[12:]


@pytest.mark.parametrize("kind", [GroupCache, AllocatorCache], ids=["groups", "allocators"])
def test_a_paged_step_is_known_by_its_lengths_its_cache_and_its_slots(kind):
    """Tensors that are written again, and shared between caches, as static buffers are; rows behind the last request are padding."""
    module = torch.nn.Module()
    module.layer_idx = kind.layer
    caches = kind(), kind()
    cu_q, cu_k, read, write = (torch.zeros(n, dtype=t) for n, t in ((3, torch.int32), (3, torch.int32), (16, torch.int64), (4, torch.int64)))
    for blocks, kv_len, cache in (((3, 5), (6, 3), 0), ((3, 5), (6, 3), 1), ((7, 5), (6, 3), 1), ((7, 5), (7, 4), 1), ((7, 5), (8, 1), 0)):
        slots = [[(blocks[r] if i < 4 else 8 + r) * kind.stride + i % 4 for i in range(kv_len[r])] for r in range(2)]
        if cache == 0 or kv_len != (6, 3):
            cu_q[:], cu_k[:] = torch.tensor([0, 1, 2]), torch.tensor([0, kv_len[0], sum(kv_len)])
        read[: sum(kv_len)] = torch.tensor(sum(slots, []))
        write[:2], write[2:] = torch.tensor([s[-1] for s in slots]), 0
        q, k, v = (torch.randn(1, h, 4, 16) for h in (4, 2, 2))
        before = [x.clone() for x in caches[cache].rows()]
        given = {"cache": caches[cache], "cu_seq_lens_q": cu_q, "cu_seq_lens_k": cu_k, "read_index": [read[: sum(kv_len)]], "write_index": [write]}
        with torch.no_grad():
            out, _ = kt.paged_attention_forward(module, q, k, v, None, scaling=0.25, **given)
        assert out.shape == (1, 4, 4, 16) and not out[0, 2:].any()
        for was, now in zip(before, caches[cache].rows()):  # written: the new slots of K and V, and what padding writes
            changed = (was != now).any(2).any(1).nonzero()[:, 0].tolist()
            assert set(changed) <= {s + d for s in write.tolist() for d in (-4, 0, 4)} and len(changed) <= 6
        for r in range(2):
            keys, values = (rows[slots[r]].transpose(0, 1)[None] for rows in caches[cache].rows())
            assert torch.equal(keys[0, :, -1], k[0, :, r]) and torch.equal(values[0, :, -1], v[0, :, r])  # the new key was written
            wanted = torch.nn.functional.scaled_dot_product_attention(q[:, :, r : r + 1], keys, values, enable_gqa=True)
            torch.testing.assert_close(out[0, r], wanted[0, :, 0], atol=1e-5, rtol=1e-5)


def test_paged_caches_that_are_none():
    """Layouts of releases to come, models that keep something else, and layers whose keys went by without us."""
    module, cu, index = torch.nn.Module(), torch.tensor([0, 3], dtype=torch.int32), torch.zeros(3, dtype=torch.int64)
    module.layer_idx = 7
    q = torch.randn(1, 2, 3, 16)
    given = {"cu_seq_lens_q": cu, "cu_seq_lens_k": {"full_attention": cu, "sliding_attention": cu}, "read_index": [index[:0]], "write_index": [index]}

    def message(cache=None, **more):
        with pytest.raises(kvloom.UnsupportedError) as caught, torch.no_grad():
            kt.paged_attention_forward(module, q, q, q, None, scaling=0.25, cache=cache, **given, **more)
        return str(caught.value)

    class Another:
        pass

    assert "expected one of groups or of allocators of layers, got another, Another; docs/transformers.md" in message(Another())
    cache = AllocatorCache()
    cache.layer_to_allocator[7].block_physical_stride = 12
    assert "expected [tokens, 2, heads, head_dim] in blocks of 24 rows, got [120, 2, 2, 16] in blocks of 12; docs" in message(cache)
    cache = AllocatorCache()
    cache.layer_to_allocator[7].layer_type = "latent"
    assert "layer 7: expected full_attention or sliding_attention, got latent" in message(cache)
    assert "call kvloom.transformers.use_paged(model)" in message()
    assert "max_blocks_per_request=0" in message(AllocatorCache(), block_table=index)
    assert "expected the keys and values that it gave its cache, got others" in message(kvloom_update=_generate_batch.Update(AllocatorCache(), 7, q, q.clone()))
    with pytest.raises(TypeError, match="has generate_batch, got Module"):
        kt.use_paged(module)
    module.generate_batch = None
    with pytest.raises(ValueError, match="`name`: expected one that kvloom.transformers.register was given, got 'other'"):
        kt.use_paged(module, "other")


class Layers(torch.nn.Module):
    """A model of two layers, each of which gives its keys to the paged cache and, if it `asks`, calls the attention function."""

    config = types.SimpleNamespace(_attn_implementation="kvloom_paged_flash")
    layer_idx = 7

    def __init__(self, asks):
        super().__init__()
        self.asks = asks
        self.register_forward_pre_hook(_generate_batch._hand_over, with_kwargs=True)
        self.register_forward_hook(_generate_batch._look_back, with_kwargs=True)

    def forward(self, cache, **step):
        for asks in self.asks:
            step = dict(step)
            q = torch.ones(1, 2, 1, 16)
            cache.update(key_states=q, value_states=q, layer_idx=7, kwargs=step)
            if asks:
                kt.paged_attention_forward(self, q, q, q, None, scaling=0.25, **step)
        return cache


def test_keys_that_go_past_our_attention_are_refused():
    """The step's cache is handed over as one that copies nothing: then a layer that attends by itself would see the new keys alone."""
    given = PagedAttentionCache.__new__(PagedAttentionCache)
    given.layer_to_allocator = {7: Allocator()}
    ends = torch.tensor([0, 1], dtype=torch.int32)
    step = {"cu_seq_lens_q": ends, "cu_seq_lens_k": {"full_attention": ends}, "read_index": [ends[:0].long()], "write_index": [torch.tensor([26])]}
    with torch.no_grad():
        handed = Layers([True, True])(cache=given, **step)
        assert isinstance(handed, PagedAttentionCache) and handed is not given and handed.layer_to_allocator is given.layer_to_allocator
        assert given.layer_to_allocator[7].cache_tensor.view(-1, 2, 16)[[8 + 26, 12 + 26]].eq(1).all()
        for asks in ([False], [True, False]):
            with pytest.raises(kvloom.UnsupportedError, match=f"Layers: expected attention of every layer .* got {sum(asks)} of {len(asks)} that gave"):
                Layers(asks)(cache=given, **step)
        other = Layers([])
        other.config = types.SimpleNamespace(_attn_implementation="sdpa")
        assert other(cache=given, **step) is given


def test_what_is_remembered_is_forgotten_when_written():
    x = torch.zeros(2)
    made = []

    def make():
        made.append(float(x[0]))
        return made[-1]

    assert _plans.remembered(x, make) == _plans.remembered(x, make) == 0.0 and len(made) == 1
    x += 1
    assert _plans.remembered(x, make) == 1.0 and len(made) == 2
    with torch.inference_mode():
        y = torch.ones(1)
        _plans.remembered(y, make), _plans.remembered(y, make)
    assert len(made) == 4
