#include "sampling/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace lapidary {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kInstructionGeneration = R"({"bos_token_id": 2, "do_sample": true,
    "eos_token_id": [1, 106, 50], "pad_token_id": 0, "temperature": 1.0, "top_k": 64,
    "top_p": 0.95, "transformers_version": "5.5.0"})";
constexpr const char* kInstructionConfig =
    R"({"eos_token_id": [1, 106], "text_config": {"eos_token_id": 1, "vocab_size": 262144}})";

TEST(GenerationDefaults, InstructionCheckpointStopsAtAllThree) {
  const auto defaults =
      GenerationDefaults::Parse(kInstructionGeneration, kInstructionConfig).value();
  EXPECT_THAT(defaults.stop_ids, ElementsAre(1, 106, 50));
  EXPECT_EQ(defaults.sampling.temperature, 1.0f);
  EXPECT_EQ(defaults.sampling.top_k, 64);
  EXPECT_EQ(defaults.sampling.top_p, 0.95f);
  EXPECT_EQ(defaults.sampling.min_p, 0.0f);
  EXPECT_THAT(defaults.sampling.suppress_tokens, IsEmpty());
}

TEST(GenerationDefaults, BaseCheckpointStopsAtEosAlone) {
  const auto defaults =
      GenerationDefaults::Parse(R"({"do_sample": true, "eos_token_id": 1, "top_k": 64})",
                                R"({"eos_token_id": 1, "text_config": {"eos_token_id": 1}})")
          .value();
  EXPECT_THAT(defaults.stop_ids, ElementsAre(1));
}

TEST(GenerationDefaults, AScalarSavedByAReExportDoesNotLoseTheOthers) {
  const auto defaults =
      GenerationDefaults::Parse(R"({"eos_token_id": 1})", kInstructionConfig).value();
  EXPECT_THAT(defaults.stop_ids, ElementsAre(1, 106));
}

TEST(GenerationDefaults, NoGenerationConfigMeansGreedy) {
  const auto defaults = GenerationDefaults::Parse(std::nullopt, kInstructionConfig).value();
  EXPECT_TRUE(defaults.sampling.greedy());
  EXPECT_THAT(defaults.stop_ids, ElementsAre(1, 106));
  EXPECT_THAT(GenerationDefaults::Parse(std::nullopt, std::nullopt).value().stop_ids, IsEmpty());
}

TEST(GenerationDefaults, WithoutDoSampleItIsGreedy) {
  for (const char* text : {R"({"do_sample": false, "temperature": 0.7})", R"({"temperature": 0.7})",
                           R"({"do_sample": null})", "{}"}) {
    EXPECT_TRUE(GenerationDefaults::Parse(text, std::nullopt).value().sampling.greedy()) << text;
  }
}

TEST(GenerationDefaults, ReadsEveryFieldAndTakesNullAsAbsent) {
  const auto defaults =
      GenerationDefaults::Parse(R"({"do_sample": true, "temperature": 1, "top_k": null,
          "top_p": null, "min_p": 0.05, "repetition_penalty": 1.25, "eos_token_id": null,
          "suppress_tokens": [258883, 258882]})",
                                R"({"text_config": null})")
          .value();
  EXPECT_EQ(defaults.sampling.temperature, 1.0f);
  EXPECT_EQ(defaults.sampling.top_k, 0);
  EXPECT_EQ(defaults.sampling.top_p, 1.0f);
  EXPECT_EQ(defaults.sampling.min_p, 0.05f);
  EXPECT_EQ(defaults.sampling.repetition_penalty, 1.25f);
  EXPECT_THAT(defaults.sampling.suppress_tokens, ElementsAre(258883, 258882));
  EXPECT_THAT(defaults.stop_ids, IsEmpty());
}

TEST(GenerationDefaults, BadFilesAreNamedWithTheFieldAtFault) {
  const struct {
    const char* generation;
    const char* config;
    const char* message;
  } cases[] = {
      {"{", "{}", "generation_config.json is not valid JSON"},
      {"[1]", "{}", "generation_config.json must hold a JSON object"},
      {"{}", "", "config.json is not valid JSON"},
      {"{}", "7", "config.json must hold a JSON object"},
      {R"({"eos_token_id": -1})", "{}", "generation_config.json: eos_token_id must be between 0"},
      {R"({"eos_token_id": [1, "x"]})", "{}", "eos_token_id must be an integer, got string"},
      {R"({"eos_token_id": 1.5})", "{}", "eos_token_id must be an integer"},
      {R"({"eos_token_id": true})", "{}", "eos_token_id must be an integer, got boolean"},
      {R"({"eos_token_id": 4294967297})", "{}", "got 4294967297"},
      {R"({"eos_token_id": 18446744073709551615})", "{}", "got 18446744073709551615"},
      {R"({"eos_token_id": 99999999999999999999999})", "{}", "must be an integer"},
      {R"({"eos_token_id": [[1]]})", "{}", "must be an integer, got array"},
      {"{}", R"({"eos_token_id": {}})", "config.json: eos_token_id must be an integer"},
      {"{}", R"({"text_config": 3})", "text_config must be an object"},
      {"{}", R"({"text_config": {"eos_token_id": -5}})", "text_config.eos_token_id must be"},
      {R"({"suppress_tokens": [-3]})", "{}", "suppress_tokens must be between 0"},
      {R"({"do_sample": 1})", "{}", "do_sample must be true or false"},
      {R"({"temperature": "hot"})", "{}", "temperature must be a number, got string"},
      {R"({"temperature": 1e300})", "{}", "temperature must be a finite number"},
      {R"({"temperature": -1})", "{}", "temperature must be a finite number of at least 0"},
      {R"({"top_k": 1.5})", "{}", "top_k must be an integer"},
      {R"({"top_k": -7})", "{}", "top_k must be between -1"},
      {R"({"top_p": 0})", "{}", "top_p must be above 0"},
      {R"({"min_p": 2})", "{}", "min_p must be between 0 and 1"},
      {R"({"repetition_penalty": 0})", "{}", "repetition_penalty must be"},
  };
  for (const auto& test : cases) {
    const auto result = GenerationDefaults::Parse(test.generation, test.config);
    ASSERT_FALSE(result.ok()) << test.message;
    EXPECT_THAT(result.error().message, HasSubstr(test.message));
  }
}

TEST(GenerationDefaults, LoadReadsTheFilesOfADirectory) {
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / "lapidary_generation_config_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  const auto missing = GenerationDefaults::Load(dir);
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, HasSubstr("config.json: No such file"));

  std::ofstream(dir / "config.json") << kInstructionConfig;
  EXPECT_TRUE(GenerationDefaults::Load(dir).value().sampling.greedy());
  std::ofstream(dir / "generation_config.json") << kInstructionGeneration;
  EXPECT_THAT(GenerationDefaults::Load(dir).value().stop_ids, ElementsAre(1, 106, 50));
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace lapidary
