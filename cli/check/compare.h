// How far an output may be from REF, and why. Nothing here may be widened to make something pass.
//
// The main measure is what the arithmetic added beyond the rounding that the output type forces: an element may be off by half a unit in
// the last place of its own type for free, and of what is left, per row and over the tensor,
//   || max(0, |o - ref| - half ulp(o)) || <= 2e-6 ||ref||
// holds for f32, f16 and bf16 outputs alike. The types of Q, K and V do not enter: REF reads the same quantised values.
// The plain error ||o - ref|| / ||ref|| is reported, and bounded as well where there are enough elements for the rounding of single ones
// to average out (one bf16 element may be off by 2^-8 = 3.9e-3 by rounding alone; their mean square is 1.6e-3):
//   f32   2e-6 over the tensor, 2e-6 a row
//   bf16  1.9e-3 over tensors of 4096 elements and more, 2.5e-3 a row of 128 elements and more
//   f16   2.4e-4 and 3.2e-4: three bits more than bf16
// or by what a perfect answer, REF rounded to the type, is off by: a row of one fp8 value a few times over, or of values below the type's
// smallest, rounds the same way in every element and averages nothing out.
// LSE (fp32): |lse - ref| <= 2e-6 (1 + |ref|).
// These are for ordinary rows; these things make the rounding of fp32 itself larger, and the bounds of fp32 grow with them and with nothing else:
//   - Long q and k. A logit is good to a few units in the last place of the partial sums of its dot product, and what a logit is off by, the
//     weight of its key is off by, relatively. Ordinary: no logit can exceed 32 = ||q|| ||k|| scale (unit variance gives sqrt(head_dim));
//     beyond, in proportion.
//   - Many keys. A sum of n terms of either sign is sqrt(n) long and rounds in every step: about 0.3 2^-24 sqrt(n) of it. Ordinary: 4096
//     keys; beyond, with the square root.
//   - A user's hooks (and a soft cap). What a hook makes of a score's rounding (six units in its last place, 3.6e-7), and of its own, is a
//     number that REF finds for every row; its excess over 2e-6 is allowed on top.
//
// Tensor cores take 16-bit operands, so the weights P are rounded before P V: to bf16 (2^-9 of each), or to f16 (2^-12) where Q is f16 or the
// cache fp8. The bounds of GPU runs:
//   whole tensor, 4096 elements and more: 2.6e-3 (P in bf16), 3.3e-4 + the output's own (P in f16)
//   a row: (4e-3 ||ref|| + 6e-4 sqrt(dim) max|v scale|) growth, an eighth of it for f16: rounding errors are of the weights, not of the row, so
//   a row whose values cancel keeps the error of what it cancelled
//   LSE: 4e-6 (1 + |ref|), for the approximate exp2 and log2 of the hardware
// Where RoPE is fused, turned Q and K are rounded once more. What that does to a row grows with the length of q and with how few keys have its
// weight, so no share of ||ref|| bounds it: REF finds its root mean square r for every row and LSE (ref/rounding.h has the derivation). Errors of
// elements are uniform within half a unit in the last place, and sums of such have tails no heavier than a normal variable's, so there is on top of
//   a row and LSE: 5 r, which one in 1.7 million passes where errors have a single direction (LSE's do), and fewer where they have more
//   whole tensor: sqrt(sum r^2) + 5 max r: its norm passes the mean by 5 deviations of its widest direction, which lies within a row if rows are
//   rounded apart; those of a KV head share K's errors, but each meets them with a q of its own
// Simulated, a perfect kernel comes to 0.56 of a row's bound at most, to 0.74 of LSE's and to 0.44 of a whole tensor's (24,592 rows in f16 of 1 to
// 600 keys, q_gain 0.5 to 4; 24,472 in bf16: 0.51, 0.71, 0.65), and its turned Q and K alone to 3.8 r. Turned to bf16 instead of f16, 1613 of 1700
// cases are refused, and with a key one position too far 1466 (q_gain 0.5: 338 of 341, 4: 280 of 380, where most keys have no weight to speak of).
#pragma once

#include "cli/check/case.h"
#include "kvloom/ref/rounding.h"

#include <string>
#include <vector>

namespace kvloom::check {

struct Errors {
  double whole = 0.0;         // ||o - ref|| / ||ref|| over all rows
  double worst_row = 0.0;     // ... of one (token, head)
  double worst_excess = 0.0;  // ... of one row, beyond the rounding of the output
  double worst_lse = 0.0;     // |lse - ref| / (1 + |ref|)
  std::string fault;          // "" if within tolerance, else the first fault: which row, what was got, what was wanted
};

/// o [tokens, heads, dim] and lse [tokens, heads] (empty: not asked for) against REF. A row that keeps nothing must be exactly zero, with
/// LSE -inf (with a sink: the sink). `growth` [rows]: by how much the bounds of fp32 grow, at least 1; empty: 1.
Errors compare(const Case& c, const std::vector<float>& o, const std::vector<float>& lse, const std::vector<double>& ref_o,
               const std::vector<double>& ref_lse, const std::vector<double>& growth = {});

/// The same for outputs of a GPU, by the bounds of tensor cores. `rounding` [rows], where RoPE is fused: what rounding turned Q and K does
/// (ref/rounding.h); empty: nothing.
Errors compare_gpu(const Case& c, const std::vector<float>& o, const std::vector<float>& lse, const std::vector<double>& ref_o,
                   const std::vector<double>& ref_lse, const std::vector<double>& growth = {}, const std::vector<ref::Rounding>& rounding = {});

}  // namespace kvloom::check
