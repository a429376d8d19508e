#include "front/text_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "synth/byte_tokenizer.h"

namespace lapidary {
namespace {

class TextModelTest : public testing::Test {
 protected:
  TextModelTest()
      : directory_(std::filesystem::path(testing::TempDir()) /
                   testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(directory_);
    Write("config.json", R"({"eos_token_id": [1, 106]})");
  }
  ~TextModelTest() override { std::filesystem::remove_all(directory_); }

  void Write(const char* name, const std::string& text) const {
    std::ofstream(directory_ / name) << text;
  }

  const std::filesystem::path directory_;
};

TEST_F(TextModelTest, WhatIsMissingIsAReason) {
  const auto model = TextModel::Load(directory_);
  ASSERT_TRUE(model.ok());
  ASSERT_FALSE(model->tokenizer.ok());
  EXPECT_THAT(model->tokenizer.error().message, testing::HasSubstr("has no tokenizer.json"));
  ASSERT_FALSE(model->chat_template.ok());
  EXPECT_THAT(model->chat_template.error().message, testing::HasSubstr("no chat template"));
  EXPECT_TRUE(model->defaults.sampling.greedy());
  EXPECT_THAT(model->defaults.stop_ids, testing::ElementsAre(1, 106));
}

TEST_F(TextModelTest, WhatIsThereIsLoaded) {
  Write("tokenizer.json", ByteTokenizer(512).value().dump());
  Write("chat_template.jinja", "{{ bos_token }}");
  Write("generation_config.json", R"({"do_sample": true, "temperature": 0.5})");
  const auto model = TextModel::Load(directory_);
  ASSERT_TRUE(model.ok());
  EXPECT_TRUE(model->tokenizer.ok());
  EXPECT_TRUE(model->chat_template.ok());
  EXPECT_EQ(model->defaults.sampling.temperature, 0.5f);
}

TEST_F(TextModelTest, ABrokenTokenizerIsAnError) {
  Write("tokenizer.json", "{");
  const auto model = TextModel::Load(directory_);
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.error().message, testing::HasSubstr("tokenizer.json"));
}

TEST_F(TextModelTest, ATokenizerOfAnotherFamilyIsAnError) {
  auto tokenizer = ByteTokenizer(512).value();
  for (auto& token : tokenizer["added_tokens"]) {
    if (token["content"] == "<turn|>")
      token["content"] = "<start_of_turn>";
    else if (token["content"] == "<|turn>")
      token["content"] = "<turn|>";
  }
  auto& vocab = tokenizer["model"]["vocab"];
  vocab.erase("<turn|>");
  vocab.erase("<|turn>");
  vocab["<turn|>"] = 105;
  vocab["<start_of_turn>"] = 106;
  Write("tokenizer.json", tokenizer.dump());
  EXPECT_FALSE(TextModel::Load(directory_).ok());
}

}  // namespace
}  // namespace lapidary
