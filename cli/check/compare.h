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
// cache fp8; and where RoPE is fused, the rotated Q and K are rounded again, which moves a logit by 2^-9 of its terms. The bounds of GPU runs:
//   whole tensor, 4096 elements and more: 2.6e-3 (P in bf16), 3.3e-4 + the output's own (P in f16). With fused RoPE in bf16
//   3.9e-3 (1 + 1 / sqrt(rows)): rounding to bf16 is off by 1.65e-3, root mean square, of outputs and weights once each, and of a logit's Q and
//   K once each; logits of random cases are 1.33 large, so 1.65e-3 sqrt(2 + 2 * 1.33^2) = 3.9e-3 of a perfect kernel over many rows. A row's share
//   varies by 0.17 (simulated), and the bound leaves six times that.
//   a row: (4e-3 ||ref|| + 6e-4 sqrt(dim) max|v scale|) growth, an eighth of it for f16: rounding errors are of the weights, not of the row, so
//   a row whose values cancel keeps the error of what it cancelled
//   LSE: 4e-6 (1 + |ref|), for the approximate exp2 and log2 of the hardware; with fused RoPE 2e-2 (bf16), 2.5e-3 (f16)
#pragma once

#include "cli/check/case.h"

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

/// The same for outputs of a GPU, by the bounds of tensor cores.
Errors compare_gpu(const Case& c, const std::vector<float>& o, const std::vector<float>& lse, const std::vector<double>& ref_o,
                   const std::vector<double>& ref_lse, const std::vector<double>& growth = {});

}  // namespace kvloom::check
