#include "hub/model_name.h"

#include <gtest/gtest.h>

namespace lapidary::hub {
namespace {

ModelName Parsed(const std::string& text) {
  const auto name = ParseModelName(text);
  CHECK(name.ok()) << name.error().message;
  CHECK(name->has_value()) << text;
  return **name;
}

bool IsNoName(const std::string& text) {
  const auto name = ParseModelName(text);
  return name.ok() && !name->has_value();
}

TEST(ModelNameTest, ARepositoryMayHaveATypeAndARevision) {
  const ModelName plain = Parsed("google/gemma-4-E4B-it");
  EXPECT_EQ(plain.repo, "google/gemma-4-E4B-it");
  EXPECT_EQ(plain.revision, "main");
  EXPECT_EQ(plain.quant, "");
  const ModelName full = Parsed("unsloth/gemma-4-E4B-it-GGUF:UD-Q4_K_XL@refs/pr/1");
  EXPECT_EQ(full.repo, "unsloth/gemma-4-E4B-it-GGUF");
  EXPECT_EQ(full.quant, "UD-Q4_K_XL");
  EXPECT_EQ(full.revision, "refs/pr/1");
  EXPECT_EQ(full.Spelled(), "unsloth/gemma-4-E4B-it-GGUF:UD-Q4_K_XL@refs/pr/1");
}

TEST(ModelNameTest, ShortNamesLeadToWhatGoogleAndUnslothPublish) {
  EXPECT_EQ(Parsed("e4b").repo, "google/gemma-4-E4B-it");
  EXPECT_EQ(Parsed("E4B:bf16@v2").repo, "google/gemma-4-E4B-it");
  EXPECT_EQ(Parsed("26b").repo, "google/gemma-4-26B-A4B-it");
  EXPECT_EQ(Parsed("e4b:q4_0").repo, "google/gemma-4-E4B-it-qat-q4_0-gguf");
  EXPECT_EQ(Parsed("e4b:Q4_0").quant, "Q4_0");
  EXPECT_EQ(Parsed("31b:w4a16").repo, "google/gemma-4-31B-it-qat-w4a16-ct");
  EXPECT_EQ(Parsed("12b:q8_0").repo, "unsloth/gemma-4-12B-it-GGUF");
  EXPECT_EQ(Parsed("12b:UD-Q4_K_XL").quant, "UD-Q4_K_XL");
  EXPECT_EQ(Parsed("e4b:q4_0@v2").Spelled(), "e4b:q4_0@v2");
}

TEST(ModelNameTest, AFormatThatAShortNameLacksIsAnErrorThatListsTheOthers) {
  const auto name = ParseModelName("26b-a4b:w4a16");
  ASSERT_FALSE(name.ok());
  EXPECT_NE(name.error().message.find("26b-a4b:q4_0"), std::string::npos);
  EXPECT_EQ(name.error().message.find("26b-a4b:w4a16,"), std::string::npos);
  EXPECT_FALSE(ParseModelName("e4b:").ok());
  EXPECT_FALSE(ParseModelName("e4b:exl2").ok());
  EXPECT_FALSE(ParseModelName("google/gemma:a b").ok());
}

TEST(ModelNameTest, PathsAndOtherWordsAreNoNames) {
  for (const char* text : {"",
                           "pebble-e",
                           "/models/gemma",
                           "./gemma",
                           "../gemma/x",
                           "a/b/c",
                           "google/",
                           "/x",
                           "~/x",
                           "models/x.gguf",
                           "models/config.json",
                           "a/model.safetensors",
                           "a/..",
                           "../x",
                           "a//b",
                           "a/b--c",
                           "-a/b",
                           "a/b.git",
                           "tiny-e",
                           "a/b\nc",
                           "\\\\host/share"}) {
    EXPECT_TRUE(IsNoName(text)) << text;
  }
  EXPECT_TRUE(IsNoName(std::string("a/b\0c", 5)));
  EXPECT_TRUE(IsNoName("a/" + std::string(100, 'b')));
}

TEST(ModelNameTest, ARevisionThatCouldLeaveItsFolderIsRefused) {
  for (const char* revision :
       {"", "..", "../../x", "/etc", "a//b", "a/../b", "-x", "a b", "a\\b"}) {
    EXPECT_FALSE(ParseModelName(std::string("google/gemma@") + revision).ok()) << revision;
  }
}

}  // namespace
}  // namespace lapidary::hub
