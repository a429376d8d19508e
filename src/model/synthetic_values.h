// Reproducible random weights: element i of a tensor is a function of (seed, tensor name, i) alone,
// in integer arithmetic up to one final float multiplication, so every machine makes the same file.
//
// Scales are chosen so that a random model behaves like a trained one numerically: matrices keep
// the variance of their input, attention scores have a standard deviation near 2 (the attention
// scale is 1.0, so q/k norm weights carry head_dim^(-1/4)), logits reach into the softcap. Norms,
// layer scalars and router scales are drawn away from 1 so that a missing factor shows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/synthetic_law.h"
#include "model/tensor_specs.h"
#include "tensor/dtype.h"

namespace lapidary {

// An assistant's tensors bear the names of its target's: another seed keeps the two apart.
constexpr uint64_t AssistantSeed(uint64_t seed) { return seed ^ 0xa551574e7u; }

// The token ordering of a synthetic assistant: a fixed permutation that scatters neighbours.
std::vector<int64_t> SyntheticTokenOrdering(int64_t vocab_size);

SyntheticLaw MakeSyntheticLaw(const TensorSpec& spec, uint64_t seed);

// Elements [first, first + out.size()) of the tensor.
void FillSynthetic(const TensorSpec& spec, uint64_t seed, int64_t first, std::span<float> out);

// The same, rounded to a stored type (F32, F16 or BF16); `out` holds whole elements.
void FillSyntheticStored(const TensorSpec& spec, uint64_t seed, int64_t first, DType dtype,
                         std::span<std::byte> out);

}  // namespace lapidary
