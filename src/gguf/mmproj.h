// The vision and audio encoders of a GGUF model, which are a file of their own beside it (mmproj),
// in the form that llama.cpp's converter writes.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fields.h"
#include "gguf/gguf_checkpoint.h"

namespace lapidary {

// "mmproj" in the name, in the model's directory; by name.
std::vector<std::filesystem::path> MmprojFilesBeside(const std::filesystem::path& model);

// The config of a model whose decoder's is `decoder`, with the towers of a file: vision_config,
// audio_config, and the ids of placeholders by the tokens of the model's vocabulary. An error where
// the towers are not Gemma 4's or project to another width.
Result<Json> ConfigWithTowers(const GgufCheckpoint& model, const Json& decoder,
                              const GgufCheckpoint& mmproj);

// The tensors of a file under the names and in the shapes of Hugging Face's.
class MmprojTensors {
 public:
  static Result<MmprojTensors> Open(const std::filesystem::path& path);

  const TensorView* Find(const std::string& name) const;

 private:
  explicit MmprojTensors(GgufCheckpoint file) : file_(std::move(file)) {}
  void Add(const std::string& name, const std::string& stored);
  // Takes what has another form there as floats.
  void AddFloats(const std::string& name, std::vector<float> values, std::vector<int64_t> shape);
  void AddVision();
  void AddCells();
  void AddAudio();

  GgufCheckpoint file_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::deque<std::vector<float>> changed_;  // what some of them point to
};

}  // namespace lapidary
