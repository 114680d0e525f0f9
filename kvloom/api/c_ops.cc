// The C boundary of ops.h.
#include "kvloom/api/c_handles.h"

#include "kvloom/support/check.h"

using kvloom::OpOptions;
using kvloom::api::guarded;
using kvloom::api::indices_of;
using kvloom::api::op_options_of;
using kvloom::api::require_pointer;
using kvloom::api::tensor_of;

namespace {

kvloom_indices to_c(const kvloom::IndexView& i) { return {i.data, i.size, i.is_64 ? 64 : 32}; }

}  // namespace

extern "C" {

kvloom_status kvloom_merge_states(const kvloom_tensor* o_a, const kvloom_tensor* lse_a, const kvloom_tensor* o_b,
                                  const kvloom_tensor* lse_b, const kvloom_tensor* o, const kvloom_tensor* lse,
                                  const kvloom_op_options* where) {
  constexpr const char* self = "kvloom_merge_states";
  return guarded([&] {
    const OpOptions w = op_options_of(where);
    const bool host = w.backend == kvloom::Backend::cpu;
    kvloom::merge_states(tensor_of(o_a, self, "o_a", host), tensor_of(lse_a, self, "lse_a", host), tensor_of(o_b, self, "o_b", host),
                         tensor_of(lse_b, self, "lse_b", host), tensor_of(o, self, "o", host), tensor_of(lse, self, "lse", host), w);
  });
}

kvloom_status kvloom_merge_states_n(const kvloom_tensor* o_in, const kvloom_tensor* lse_in, const kvloom_tensor* o,
                                    const kvloom_tensor* lse, const kvloom_op_options* where) {
  constexpr const char* self = "kvloom_merge_states_n";
  return guarded([&] {
    const OpOptions w = op_options_of(where);
    const bool host = w.backend == kvloom::Backend::cpu;
    kvloom::merge_states_n(tensor_of(o_in, self, "o_in", host), tensor_of(lse_in, self, "lse_in", host), tensor_of(o, self, "o", host),
                           tensor_of(lse, self, "lse", host), w);
  });
}

kvloom_status kvloom_merge_states_ragged(const kvloom_tensor* o_in, const kvloom_tensor* lse_in, kvloom_indices indptr,
                                         const kvloom_tensor* o, const kvloom_tensor* lse, const kvloom_op_options* where) {
  constexpr const char* self = "kvloom_merge_states_ragged";
  return guarded([&] {
    const OpOptions w = op_options_of(where);
    const bool host = w.backend == kvloom::Backend::cpu;
    kvloom::merge_states_ragged(tensor_of(o_in, self, "o_in", host), tensor_of(lse_in, self, "lse_in", host),
                                indices_of(indptr, self, "indptr"), tensor_of(o, self, "o", host), tensor_of(lse, self, "lse", host), w);
  });
}

kvloom_status kvloom_append_kv(const kvloom_tensor* k_new, const kvloom_tensor* v_new, const kvloom_append_batch* batch,
                               const kvloom_tensor* k, const kvloom_tensor* v, int32_t layout, int32_t page_size, const kvloom_rope* rope,
                               const kvloom_scales* scale, const kvloom_op_options* where) {
  constexpr const char* self = "kvloom_append_kv";
  return guarded([&] {
    const OpOptions w = op_options_of(where);
    const bool host = w.backend == kvloom::Backend::cpu;
    kvloom::append_kv(tensor_of(k_new, self, "k_new", host), tensor_of(v_new, self, "v_new", host),
                      kvloom::api::append_batch_of(batch, self), tensor_of(k, self, "k", host), tensor_of(v, self, "v", host),
                      static_cast<kvloom::KvLayout>(layout), page_size, kvloom::api::rope_of(rope), kvloom::api::scales_of(scale), w);
  });
}

kvloom_status kvloom_append_slots(const kvloom_append_batch* batch, int32_t page_size, int64_t num_pages, int64_t* slots) {
  return guarded([&] { kvloom::append_slots(kvloom::api::append_batch_of(batch, "kvloom_append_slots"), page_size, num_pages, slots); });
}

kvloom_status kvloom_load_ops(int32_t device) {
  return guarded([&] { kvloom::load_ops(device); });
}

kvloom_status kvloom_wait_for_stream(int32_t device, void* stream) {
  return guarded([&] { kvloom::wait_for_stream(device, stream); });
}

kvloom_status kvloom_apply_rope(const kvloom_tensor* x, const int32_t* pos, const kvloom_rope* rope, const kvloom_op_options* where) {
  return guarded([&] {
    require_pointer(rope, "kvloom_apply_rope", "rope");
    const OpOptions w = op_options_of(where);
    kvloom::apply_rope(tensor_of(x, "kvloom_apply_rope", "x", w.backend == kvloom::Backend::cpu), pos, kvloom::api::rope_of(rope), w);
  });
}

kvloom_status kvloom_bsr_create(int32_t num_block_rows, int32_t rows_per_block, int32_t cols_per_block, int32_t num_block_cols,
                                kvloom_indices indptr, kvloom_indices indices, kvloom_bsr** bsr) {
  constexpr const char* self = "kvloom_bsr_create";
  return guarded([&] {
    require_pointer(bsr, self, "bsr");
    *bsr = new kvloom_bsr{kvloom::bsr_batch(num_block_rows, rows_per_block, cols_per_block, num_block_cols,
                                            indices_of(indptr, self, "indptr"), indices_of(indices, self, "indices"))};
  });
}

kvloom_status kvloom_variable_bsr_create(const int32_t* block_rows, int64_t num_block_rows, const int32_t* block_cols,
                                         int64_t num_block_cols, const uint8_t* map, int32_t num_kv_heads, kvloom_bsr** bsr) {
  return guarded([&] {
    require_pointer(bsr, "kvloom_variable_bsr_create", "bsr");
    const int64_t heads = num_kv_heads > 0 ? num_kv_heads : 1, most = int64_t(1) << 40;
    kvloom::require(num_block_rows >= 0 && num_block_cols >= 0 && num_block_rows <= most / heads && num_block_cols <= most / heads,
                    "kvloom_variable_bsr_create: blocks: got {} rows and {} columns, wanted at least 0 and fewer than 2^40 over all heads",
                    num_block_rows, num_block_cols);
    kvloom::require((block_rows != nullptr || num_block_rows == 0) && (block_cols != nullptr || num_block_cols == 0),
                    "kvloom_variable_bsr_create: block_rows, block_cols: got a null pointer, wanted the sizes of the blocks");
    *bsr = new kvloom_bsr{
        kvloom::variable_bsr_batch({block_rows, num_block_rows * heads}, {block_cols, num_block_cols * heads}, map, num_kv_heads)};
  });
}

kvloom_status kvloom_bsr_batch(const kvloom_bsr* bsr, kvloom_batch* batch, int32_t* page_size, int64_t* kv_tokens) {
  constexpr const char* self = "kvloom_bsr_batch";
  return guarded([&] {
    require_pointer(bsr, self, "bsr");
    require_pointer(batch, self, "batch");
    require_pointer(page_size, self, "page_size");
    const kvloom::Batch& from = bsr->bsr.batch;
    kvloom_batch b;
    kvloom_batch_init(&b, sizeof b);
    b.num_requests = from.num_requests;
    b.qo_indptr = to_c(from.qo_indptr);
    b.kv_len = to_c(from.kv_len);
    b.list_indptr = to_c(from.list_indptr);
    b.pages = to_c(from.pages);
    b.lists_per_kv_head = from.lists_per_kv_head;
    b.kv_position = static_cast<int32_t>(from.kv_position);
    b.q_pos0 = from.q_pos0;
    kvloom::require(batch->struct_size >= sizeof b, "kvloom_bsr_batch: batch.struct_size: got {}, wanted {}; call kvloom_batch_init first",
                    batch->struct_size, sizeof b);
    b.struct_size = batch->struct_size;
    std::memcpy(batch, &b, sizeof b);
    *page_size = bsr->bsr.page_size;
    if (kv_tokens != nullptr) *kv_tokens = bsr->bsr.kv_tokens;
  });
}

void kvloom_bsr_destroy(kvloom_bsr* bsr) { delete bsr; }

kvloom_status kvloom_pack_mask(const uint8_t* mask, int64_t rows, int64_t columns, uint8_t* bits, int64_t bits_size) {
  return guarded([&] {
    std::vector<uint8_t> packed;
    const int64_t size = kvloom::pack_mask(mask, rows, columns, packed);
    kvloom::require(bits_size == size, "kvloom_pack_mask: bits_size: got {}, wanted {} for a mask [{}, {}]", bits_size, size, rows,
                    columns);
    if (size == 0) return;
    require_pointer(bits, "kvloom_pack_mask", "bits");
    std::memcpy(bits, packed.data(), size_t(size));
  });
}

}  // extern "C"
