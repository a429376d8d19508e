#include "towers/processor_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace lapidary {
namespace {

class ProcessorConfigTest : public testing::Test {
 protected:
  ProcessorConfigTest() { std::filesystem::create_directories(directory_); }
  ~ProcessorConfigTest() override { std::filesystem::remove_all(directory_); }
  Result<int> Read(const char* text) {
    std::ofstream(directory_ / "processor_config.json") << text;
    return ReadDefaultSoftTokens(directory_);
  }

  const std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / fmt::format("processor_config_test.{}", getpid());
};

TEST_F(ProcessorConfigTest, WithoutTheFileOrTheFieldPicturesHave280Tokens) {
  EXPECT_EQ(ReadDefaultSoftTokens(directory_).value(), 280);
  EXPECT_EQ(Read("{}").value(), 280);
  EXPECT_EQ(Read(R"({"image_processor": {"do_resize": true}})").value(), 280);
}

TEST_F(ProcessorConfigTest, ACheckpointMaySayAnotherNumber) {
  EXPECT_EQ(Read(R"({"image_processor": {"max_soft_tokens": 70}})").value(), 70);
}

TEST_F(ProcessorConfigTest, ANumberThatIsNoBudgetIsAnErrorThatNamesTheFile) {
  const auto read = Read(R"({"image_processor": {"max_soft_tokens": 71}})");
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message,
              testing::HasSubstr("processor_config.json: max_soft_tokens is 71"));
}

}  // namespace
}  // namespace lapidary
