// A golden of tools/make_goldens.py: ids, logits and greedy tokens by transformers in float32.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "synth/synth.h"
#include "tensor/tensor_view.h"

namespace lapidary {

struct Golden {
  MappedFile file;
  SafetensorsHeader header;

  TensorView Tensor(const std::string& name) const;
  std::vector<int32_t> Ids(const std::string& name) const;
};

// tests/goldens/NAME.safetensors
Golden OpenGolden(const std::string& name);

// The options `lapidary synth` had when the golden was made.
SynthOptions OptionsOf(const Golden& golden);

}  // namespace lapidary
