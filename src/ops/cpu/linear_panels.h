// y[rows, out] = x[rows, in] * w[out, in]^T with x rounded to 8 bits and w in panels (panels.h).
//
// A row of x is cut into runs of 32, each q * scale with the largest magnitude 127. Dot products of
// a run are exact integers; runs are added up in f32, in order:
//
//   y = fma(float(sum of code * q), w scale * x scale, y), then fma(w offset, x scale * sum of q,
//   y)
//
// That one chain of operations is all of y[r, o]: it depends on neither the other rows nor on the
// machine, whose instructions differ in how they get the integers only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/matrix_ref.h"

namespace lapidary::cpu {

void LinearPanels(const float* x, int64_t rows, const MatrixRef& w, float* y, int64_t y_stride,
                  ThreadPool& threads);

// h [rows, width] = gelu(x gate^T) * (x up^T) with both in panels of [width, in]: x is rounded
// once, threads wait for each other once, and the values are those of two products and GeluMul. ups
// [rows, width]: scratch.
void GatedLinearPanels(const float* x, int64_t rows, const MatrixRef& gate, const MatrixRef& up,
                       float* h, float* ups, ThreadPool& threads);

// LinearPanels on columns [out_begin, out_end), whole panels, on the calling thread.
void LinearPanelColumns(const float* x, int64_t rows, const MatrixRef& w, int64_t out_begin,
                        int64_t out_end, float* y, int64_t y_stride);

// Instructions for dot products of integers, each a superset of the one before.
enum class PanelTarget { kPlain, kAvx2, kVnni };
const char* PanelTargetName(PanelTarget target);
// What this machine has; the last one is used.
std::vector<PanelTarget> PanelTargets();
// Uses another one until it is called again; null: the best.
void SetPanelTargetForTest(const PanelTarget* target);

}  // namespace lapidary::cpu
