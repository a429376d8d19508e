#include "load/model_directory.h"

#include <gtest/gtest.h>

#include <fstream>

#include "model/presets.h"

namespace lapidary {
namespace {

TEST(ModelDescription, IsShortlyCalledByItsDirectoryOrItsPreset) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "model_directory_test" / "own-name";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << PresetConfig("tiny-e").value().dump();
  for (const std::string& path :
       {directory.string(), directory.string() + "/", (directory / "..").string() + "/own-name"}) {
    EXPECT_EQ(DescribeModel(path).value().ShortName(), "own-name") << path;
  }
  std::filesystem::remove_all(directory.parent_path());
  EXPECT_EQ(DescribeModel("tiny-e").value().ShortName(), "tiny-e");
}

TEST(ModelDescription, AFileOfModeloptBesideTheConfigTellsThatItIsQuantised) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "modelopt_directory_test";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << PresetConfig("tiny-e").value().dump();
  EXPECT_FALSE(DescribeModel(directory.string()).value().is_compressed());
  std::ofstream(directory / "hf_quant_config.json") << R"({"quantization": {"quant_algo": "FP8"}})";
  EXPECT_TRUE(DescribeModel(directory.string()).value().is_compressed());
  std::ofstream(directory / "hf_quant_config.json") << "[]";
  EXPECT_FALSE(DescribeModel(directory.string()).ok());
  std::filesystem::remove_all(directory);
}

// The error of a name that names no model.
std::string Refusal(const std::filesystem::path& path) {
  const auto model = DescribeModel(path.string());
  return model.ok() ? "none" : model.error().message;
}

TEST(ModelDescription, ASnapshotOfTheHubIsCalledAsItIsThere) {
  const std::filesystem::path cache =
      std::filesystem::path(testing::TempDir()) / "snapshot_directory_test";
  const auto snapshot =
      cache / "models--google--gemma-4-E2B-it" / "snapshots" / std::string(40, 'a');
  std::filesystem::create_directories(snapshot);
  std::ofstream(snapshot / "config.json") << PresetConfig("tiny-e").value().dump();
  EXPECT_EQ(DescribeModel(snapshot.string()).value().ShortName(), "google/gemma-4-E2B-it");
  std::filesystem::remove_all(cache);
}

TEST(ModelDescription, WhatIsNoModelIsSaidWithWhatWouldHelp) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "no_model_directory_test";
  std::filesystem::create_directories(directory);
  const auto says = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  std::ofstream(directory / "notes.txt") << "x";
  says(Refusal(directory / "notes.txt"), "is no GGUF file");
  says(Refusal(directory / "missing.gguf"), "there is no file");
  says(Refusal(directory / "missing"), "neither a checkpoint directory");
  std::ofstream(directory / "config.json") << PresetConfig("tiny-e").value().dump();
  std::ofstream(directory / "model.safetensors") << "x";
  says(Refusal(directory / "model.safetensors"), "name its directory, " + directory.string());
  says(Refusal(directory / "config.json"), "name its directory, " + directory.string());
  for (const char* name : {"tokenizer.json", "model-00002-of-00002.safetensors", "x.gguf"}) {
    std::ofstream(directory / name) << "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    says(Refusal(std::string(name) == "x.gguf" ? directory / name : directory),
         (directory / name).string() + " is a git-lfs pointer");
    std::filesystem::remove(directory / name);
  }
  EXPECT_EQ(Refusal(directory), "none");
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace lapidary
