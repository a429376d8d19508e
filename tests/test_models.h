// Small checkpoints for tests that cross folders, made in a temporary directory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "base/json_fields.h"
#include "model/plan.h"
#include "synth/synth.h"

namespace lapidary {

// A directory that is removed with its owner.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The config of a preset, or of tests/goldens/NAME.config.json.
Json TestConfig(const std::string& name);

// The plan of such a config with some fields of its text part changed.
ModelPlan TestPlan(const std::string& name, const Json& changes);

// Writes the checkpoint to `directory` / name and returns that path.
std::filesystem::path MakeTestModel(const std::string& name, const SynthOptions& options,
                                    const TemporaryDirectory& directory);

// "tiny-e" -> "tiny_e", as GoogleTest wants its parameter names.
inline std::string ModelTestName(const testing::TestParamInfo<std::string>& model) {
  std::string name = model.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace lapidary
