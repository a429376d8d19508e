// The names of Gemma 4's tensors in GGUF.
#pragma once

#include <string>
#include <string_view>

namespace lapidary {

// By the name of the safetensors files (prefix stripped): "layers.3.mlp.up_proj.weight" is
// "blk.3.ffn_up.weight". Every name of RequiredTensors has one.
std::string GgufTensorName(std::string_view name);

}  // namespace lapidary
