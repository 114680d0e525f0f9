#include "kvloom/runtime/boxes.h"

#include "kvloom/base/math.h"
#include "kvloom/runtime/tensor_maps.h"
#include "kvloom/support/check.h"

#include <limits>
#include <numeric>

namespace kvloom::runtime {
namespace {

constexpr int kRank = TensorMapShape::kRank;
constexpr int32_t kMostInBox = 256;                             // of a dimension
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // coordinates

/// K or V, in elements.
struct Side {
  const char* name;
  const void* data;
  DType dtype;
  int64_t page, token, head;
  int64_t dim;
  int promotion = jit::kCuTensorMapPromotion256;

  /// What a swizzle is wide: 128, 64 or 32 bytes.
  int64_t block() const {
    const int64_t bytes = dim * size_of(dtype);
    return (bytes % 128 == 0 ? 128 : bytes % 64 == 0 ? 64 : 32) / size_of(dtype);
  }
};

/// A stride that a map may have, 16 bytes of any dtype: of what there is but one, any does, and frameworks say 0.
int64_t stride_of(int64_t stride, int64_t count) { return stride == 0 && count <= 1 ? 16 : stride; }

/// `strides`: of dimensions 1 to 4, elements.
TensorMap encode(const Side& side, const int64_t (&dims)[kRank], const int64_t (&strides)[kRank - 1], const int64_t (&box)[kRank]) {
  const int64_t size = size_of(side.dtype), block_bytes = side.block() * size;
  TensorMapShape shape{};
  shape.data = side.data;
  for (int i = 0; i < kRank; ++i) shape.dims[i] = uint64_t(dims[i]), shape.box[i] = unsigned(box[i]);
  for (int i = 0; i + 1 < kRank; ++i) shape.strides[i] = uint64_t(strides[i] * size);
  shape.type = size == 1 ? jit::kCuTensorMapU8 : side.dtype == DType::f16 ? jit::kCuTensorMapF16 : jit::kCuTensorMapBf16;
  shape.swizzle = block_bytes == 128  ? jit::kCuTensorMapSwizzle128
                  : block_bytes == 64 ? jit::kCuTensorMapSwizzle64
                                      : jit::kCuTensorMapSwizzle32;
  shape.promotion = side.promotion;
  const jit::Driver& d = jit::driver();
  if (d.tensor_map_encode_tiled == nullptr) {
    fail(ErrorCode::unsupported,
         "run: the driver has no cuTensorMapEncodeTiled, wanted one for CUDA 12.0 or newer; update it, or take options.kernel = \"sm80\"");
  }
  TensorMap map;
  const jit::CuResult result = tensor_map(d.tensor_map_encode_tiled, shape, map);
  if (result == jit::kCuSuccess) return map;
  fail(ErrorCode::unsupported,
       "run: {}: strides of pages, tokens and heads: got {}, {} and {} elements, wanted some that a tensor map can have "
       "(cuTensorMapEncodeTiled says {}); "
       "take options.kernel = \"sm80\"",
       side.name, side.page, side.token, side.head, int(result));
}

/// True if head h + 1 of a page is the next place of the map.
bool heads_follow(const AttentionSpec& s, const Side& side, int64_t num_pages) {
  const int64_t page = stride_of(side.page, num_pages);
  return s.num_kv_heads > 1 && side.head > 0 && page % side.head == 0;
}

/// Pages and heads are one dimension of the map: its step is what both strides are multiples of.
AttendBoxes::Of paged(const AttentionSpec& s, const Side& side, int64_t num_pages, int64_t rows, int64_t box_heads) {
  const int64_t heads = s.num_kv_heads, page = stride_of(side.page, num_pages), head = heads == 1 ? page : side.head,
                step = std::gcd(page, head);
  AttendBoxes::Of of{};
  if (step == 0 || page < 0 || head < 0) {
    fail(ErrorCode::unsupported,
         "run: {}: strides of pages and heads: got {} and {} elements, wanted none below 0, and one above; take options.kernel = \"sm80\"",
         side.name, page, head);
  }
  const int64_t page_step = page / step, head_step = head / step, last_head = (heads - 1) * head_step;
  const int64_t places = num_pages > 0 ? (num_pages - 1) * page_step + last_head + 1 : kMost;
  if (places > kMost || page_step > kMost) {
    fail(ErrorCode::unsupported,
         "run: {}: strides of pages and heads: got {} and {} elements for {} pages, wanted larger common divisors or fewer pages; take "
         "options.kernel = "
         "\"sm80\"",
         side.name, page, head, num_pages);
  }
  of.page_step = int32_t(page_step);
  of.head_step = int32_t(head_step);
  of.map = encode(side, {side.block(), 8, side.dim / side.block(), s.page_size / 8, places},
                  {side.token, side.block(), 8 * side.token, step}, {side.block(), 8, side.dim / side.block(), rows / 8, box_heads});
  return of;
}

/// Rows by themselves: 32 bits count units as large as strides allow.
AttendBoxes::Of rows(const AttentionSpec& s, const Side& side, int64_t num_pages) {
  constexpr int64_t kAnyMemory = int64_t(1) << 38;                   // bytes; more than a GPU has
  constexpr int64_t kPlaces = std::numeric_limits<uint32_t>::max();  // the last of them says that there is no row
  const int64_t tokens = s.page_size, heads = s.num_kv_heads, size = size_of(s.kv_dtype);
  const int64_t page = stride_of(side.page, num_pages), token = stride_of(side.token, tokens), head = stride_of(side.head, heads);
  const int64_t step = std::gcd(std::gcd(page, heads == 1 ? page : head), tokens == 1 ? page : token);
  AttendBoxes::Of of{};
  if (num_pages == 0 && side.page == 0) return of;  // a cache of no pages has no strides, and no row is asked for
  const bool forward = step > 0 && page >= 0 && token >= 0 && head >= 0;
  const int64_t reach = !forward        ? 0
                        : num_pages > 0 ? ((num_pages - 1) * page + (tokens - 1) * token + (heads - 1) * head) * size
                                        : kAnyMemory;
  if (!forward || reach / (step * size) >= kPlaces || max_of(page, max_of(token, head)) / step > kMost || step * size > kMost) {
    fail(ErrorCode::unsupported,
         "run: {}: strides of pages, tokens and heads: got {}, {} and {} elements for {} pages, wanted none below 0, and larger common "
         "divisors or fewer "
         "pages; take options.kernel = \"sm80\"",
         side.name, page, token, head, num_pages);
  }
  of.page_step = int32_t(page / step), of.token_step = int32_t(token / step), of.head_step = int32_t(head / step);
  of.unit = int32_t(step * size);
  return of;
}

AttendBoxes::Of ragged(const AttentionSpec& s, const Side& side, int64_t tokens, int64_t rows, int64_t box_heads) {
  const int64_t token = stride_of(side.token, tokens), head = s.num_kv_heads == 1 ? 8 * token : side.head, blocks = side.dim / side.block();
  const auto map = [&](int64_t keys, int64_t of_dims, int64_t of_heads) {
    return encode(side, {side.block(), kMost, blocks, max_of<int64_t>(keys / 8, 1), s.num_kv_heads}, {token, side.block(), 8 * token, head},
                  {side.block(), min_of<int64_t>(keys, 8), of_dims, max_of<int64_t>(keys / 8, 1), of_heads});
  };
  AttendBoxes::Of of{};
  of.map = map(rows, blocks, box_heads);
  of.eight = map(8, blocks, 1);
  of.one = map(1, 1, 1);
  return of;
}

/// `tokens` of Q or O, all heads of a KV head.
TensorMap rows_of_heads(const AttentionSpec& s, const Side& side, int64_t tokens) {
  const int64_t head = stride_of(side.head, s.num_qo_heads);
  return encode(side, {side.dim, s.num_qo_heads, kMost, 1, 1}, {head, side.token, 8 * side.token, 8 * side.token},
                {side.block(), s.group_size(), tokens, 1, 1});
}
/// Tokens of a box of `rows` packed rows; 0: there is none.
int32_t tokens_of_box(const AttentionSpec& s, const Side& side, int32_t rows) {
  const int32_t heads = s.group_size();
  const bool fill = rows % heads == 0 && heads <= kMostInBox && rows / heads <= kMostInBox;
  const bool apart =
      side.token > 0 && (side.head > 0 || s.num_qo_heads == 1);  // else there is one token, one row for all, or they count down
  return fill && apart ? rows / heads : 0;
}

}  // namespace

AttendBoxes make_boxes(const AttentionSpec& s, const AttendParams& params, const BoxShape& shape) {
  const KvView& kv = params.kv;
  const int promotion = shape.fetch_bytes == 128 ? jit::kCuTensorMapPromotion128 : jit::kCuTensorMapPromotion256;
  // A cache of no tokens may have no address, and a map wants one.
  const Side k{"k", kv.k != nullptr ? kv.k : params.q, s.kv_dtype, kv.k_page, kv.k_token, kv.k_head, s.head_dim_qk, promotion};
  const Side v{"v", kv.v != nullptr ? kv.v : params.q, s.kv_dtype, kv.v_page, kv.v_token, kv.v_head, s.head_dim_vo, promotion};
  AttendBoxes boxes{};
  boxes.heads = 1;
  if (s.storage == Storage::paged && s.page_size % 8 != 0) {
    boxes.rows = 0;
    boxes.k = rows(s, k, kv.num_pages);
    boxes.v = rows(s, v, kv.num_pages);
  } else if (s.storage == Storage::paged) {
    boxes.rows = std::gcd(shape.keys, s.page_size);
    if (boxes.rows == shape.keys && heads_follow(s, k, kv.num_pages) && heads_follow(s, v, kv.num_pages)) boxes.heads = shape.heads;
    boxes.k = paged(s, k, kv.num_pages, boxes.rows, boxes.heads);
    boxes.v = paged(s, v, kv.num_pages, boxes.rows, boxes.heads);
  } else {
    require(kv.num_pages <= kMost, "run: k: got {} tokens, wanted at most {}", kv.num_pages, kMost);
    boxes.rows = shape.keys;
    boxes.heads = shape.heads;
    boxes.tokens = int32_t(kv.num_pages);
    boxes.k = ragged(s, k, kv.num_pages, boxes.rows, boxes.heads);
    boxes.v = ragged(s, v, kv.num_pages, boxes.rows, boxes.heads);
  }
  if (shape.query_rows == 0) return boxes;
  const Side q{"q", params.q, s.q_dtype, 0, params.q_token, params.q_head, s.head_dim_qk};
  boxes.query_tokens = tokens_of_box(s, q, shape.query_rows);
  if (boxes.query_tokens > 0) boxes.q = rows_of_heads(s, q, boxes.query_tokens);
  const Side o{"o", params.o, s.o_dtype, 0, params.o_token, params.o_head, s.head_dim_vo};
  boxes.output_tokens = size_of(s.o_dtype) == 2 ? tokens_of_box(s, o, kOutputBoxRows) : 0;
  if (boxes.output_tokens > 0) boxes.o = rows_of_heads(s, o, boxes.output_tokens);
  return boxes;
}

}  // namespace kvloom::runtime
