#include "hub/file_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace lapidary::hub {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

RepoListing ListingOf(std::vector<std::string> paths) {
  RepoListing listing;
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    listing.files.push_back({path, static_cast<int64_t>(path.size()), "", "", ""});
  }
  return listing;
}

std::vector<std::string> Chosen(const RepoListing& listing, const FileWants& wants) {
  const auto chosen = ChooseFiles(listing, wants, "owner/name");
  CHECK(chosen.ok()) << chosen.error().message;
  std::vector<std::string> paths;
  for (const RepoFile& file : chosen->files) paths.push_back(file.path);
  return paths;
}

std::string ModelFile(const RepoListing& listing, const std::string& quant) {
  const auto chosen = ChooseFiles(listing, {.quant = quant}, "owner/name");
  return chosen.ok() ? chosen->model : chosen.error().message;
}

const RepoListing kCheckpoint =
    ListingOf({"README.md", "config.json", "generation_config.json", "tokenizer.json",
               "chat_template.jinja", "model.safetensors", "consolidated.safetensors",
               "pytorch_model.bin", "onnx/model.onnx", "x-Q8_0.gguf", ".gitattributes"});
const RepoListing kGguf =
    ListingOf({"README.md", "config.json", "gemma-4-E2B-it-Q4_K_M.gguf", "gemma-4-E2B-it-Q8_0.gguf",
               "gemma-4-E2B-it-IQ4_NL.gguf", "gemma-4-E2B-it-UD-Q4_K_XL.gguf", "mmproj-F16.gguf",
               "mmproj-BF16.gguf", "MTP/mtp-gemma-4-E2B-it-Q8_0.gguf",
               "MTP/mtp-gemma-4-E2B-it-Q4_0.gguf", "imatrix.gguf"});

TEST(FileChoiceTest, ACheckpointIsOneFormatOfItsWeightsAndWhatIsReadBesideThem) {
  EXPECT_THAT(Chosen(kCheckpoint, {}),
              UnorderedElementsAre("config.json", "generation_config.json", "tokenizer.json",
                                   "chat_template.jinja", "model.safetensors"));
  EXPECT_THAT(Chosen(kCheckpoint, {.text = false}),
              UnorderedElementsAre("config.json", "generation_config.json", "model.safetensors"));
  EXPECT_THAT(Chosen(kCheckpoint, {.weights = false, .text = false}),
              UnorderedElementsAre("config.json", "generation_config.json"));
  EXPECT_THAT(Chosen(kCheckpoint, {.takes_gguf = true}), ElementsAre("x-Q8_0.gguf"));
}

TEST(FileChoiceTest, ShardsComeWithTheirIndex) {
  EXPECT_THAT(
      Chosen(ListingOf({"config.json", "model.safetensors.index.json",
                        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                        "other.safetensors", "sub/model-00001-of-00002.safetensors"}),
             {}),
      ElementsAre("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
                  "model-00002-of-00002.safetensors"));
}

TEST(FileChoiceTest, AGgufModelComesWithItsTowersAndItsAssistant) {
  EXPECT_THAT(Chosen(kGguf, {}),
              UnorderedElementsAre("gemma-4-E2B-it-Q4_K_M.gguf", "mmproj-BF16.gguf",
                                   "MTP/mtp-gemma-4-E2B-it-Q8_0.gguf"));
  EXPECT_THAT(Chosen(kGguf, {.media = false, .assistant = false}),
              ElementsAre("gemma-4-E2B-it-Q4_K_M.gguf"));
  EXPECT_EQ(ChooseFiles(kGguf, {}, "owner/name")->assistant, "MTP/mtp-gemma-4-E2B-it-Q8_0.gguf");
}

TEST(FileChoiceTest, ATypeIsAWordOfAFilesName) {
  EXPECT_EQ(ModelFile(kGguf, "q8_0"), "gemma-4-E2B-it-Q8_0.gguf");
  EXPECT_EQ(ModelFile(kGguf, "UD-Q4_K_XL"), "gemma-4-E2B-it-UD-Q4_K_XL.gguf");
  EXPECT_EQ(ModelFile(kGguf, "iq4_nl"), "gemma-4-E2B-it-IQ4_NL.gguf");
  EXPECT_THAT(ModelFile(kGguf, "Q4_K"), HasSubstr("owner/name has no Q4_K file; it has gemma-4"));
  EXPECT_THAT(ModelFile(kGguf, "Q4_NL"), HasSubstr("has no Q4_NL file"));
  // As Google names its own.
  EXPECT_EQ(
      ModelFile(ListingOf({"gemma-4-E2B_q4_0-it.gguf", "gemma-4-E2B-it-mmproj.gguf"}), "Q4_0"),
      "gemma-4-E2B_q4_0-it.gguf");
  EXPECT_THAT(ModelFile(ListingOf({"config.json", "model.safetensors"}), "Q4_0"),
              HasSubstr("has no GGUF files: name it without :Q4_0"));
}

TEST(FileChoiceTest, SplitFilesAreTakenWholeOrNotAtAll) {
  const RepoListing split =
      ListingOf({"Q8_0/x-Q8_0-00001-of-00002.gguf", "Q8_0/x-Q8_0-00002-of-00002.gguf",
                 "mmproj-F16.gguf", "x-Q4_0.gguf"});
  EXPECT_EQ(ModelFile(split, "Q8_0"), "Q8_0/x-Q8_0-00001-of-00002.gguf");
  // Towers in another folder would not be found beside the model.
  EXPECT_THAT(Chosen(split, {.quant = "Q8_0"}),
              ElementsAre("Q8_0/x-Q8_0-00001-of-00002.gguf", "Q8_0/x-Q8_0-00002-of-00002.gguf"));
  EXPECT_THAT(
      ModelFile(ListingOf({"x-Q8_0-00001-of-00003.gguf", "x-Q8_0-00003-of-00003.gguf"}), ""),
      HasSubstr("2 of the 3 parts"));
}

TEST(FileChoiceTest, WhatHoldsNoModelIsSaid) {
  for (const RepoListing& listing : {ListingOf({}), ListingOf({"README.md", "pytorch_model.bin"}),
                                     ListingOf({"mmproj-F16.gguf", "mtp-x.gguf", "imatrix.gguf"}),
                                     ListingOf({"model.safetensors"})}) {
    const auto chosen = ChooseFiles(listing, {}, "owner/name");
    ASSERT_FALSE(chosen.ok());
    EXPECT_THAT(chosen.error().message,
                HasSubstr("neither model.safetensors beside a config.json"));
  }
}

}  // namespace
}  // namespace lapidary::hub
