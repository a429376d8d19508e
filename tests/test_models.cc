#include "tests/test_models.h"

#include <stdlib.h>

#include "base/read_file.h"
#include "model/presets.h"

namespace lapidary {

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "lapidary-test-XXXXXX").string();
  CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Json TestConfig(const std::string& name) {
  if (IsPreset(name)) return PresetConfig(name).value();
  const std::filesystem::path path =
      std::filesystem::path(LAPIDARY_SOURCE_DIR) / "tests/goldens" / (name + ".config.json");
  return ParseJson(ReadFile(path, kMaxConfigFileBytes).value(), path.string()).value();
}

ModelPlan TestPlan(const std::string& name, const Json& changes) {
  Json config = TestConfig(name);
  (config.contains("text_config") ? config["text_config"] : config).update(changes);
  return MakeModelPlan(ParseModelConfig(config, name).value()).value();
}

std::filesystem::path MakeTestModel(const std::string& name, const SynthOptions& options,
                                    const TemporaryDirectory& directory) {
  ThreadPool threads(2);
  const std::filesystem::path path = directory.path() / name;
  const Status status = WriteSyntheticCheckpoint(TestConfig(name), options, path, threads);
  CHECK(status.ok()) << status.error().message;
  return path;
}

}  // namespace lapidary
