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

}  // namespace
}  // namespace lapidary
