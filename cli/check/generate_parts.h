// Pieces of a random case that need more than a die: lengths at edges, shared prefixes, levels, sparse lists, masks, RoPE.
#pragma once

#include "cli/check/case.h"
#include "cli/check/random.h"

namespace kvloom::check {

/// 0, 1, around the edges of pages and of every power of two, or anything, at most `most`.
int32_t edge_length(Random& r, int32_t page_size, int32_t most);

void choose_rope(Random& r, Case& c);
void choose_mask(Random& r, Case& c);

/// Families of requests whose page tables begin alike, up to three deep and interleaved, long enough to be worth a level. Lengths too.
void choose_shared_prefixes(Random& r, Case& c);
/// Explicit levels over the case's requests: a prefix read through one list by several of them, their own remainders, cut again.
void choose_levels(Random& r, Case& c);
/// A page list of its own for every KV head.
void choose_lists_per_head(Random& r, Case& c);
/// Each request is a block row, its pages an increasing choice of block columns, positions by column.
void choose_block_sparse(Random& r, Case& c);
/// Positions by page, with gaps or with sinks and a jump.
void choose_rolling_cache(Random& r, Case& c);

}  // namespace kvloom::check
