#include "front/gguf_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "gguf/gguf_writer.h"

namespace lapidary {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct SmallVocabulary {
  std::vector<std::string> pieces;
  std::vector<int32_t> types;

  void Add(std::string piece, int32_t type) {
    pieces.push_back(std::move(piece));
    types.push_back(type);
  }
  // Control tokens where Gemma 4 has them, the bytes, "a", "b" and "ab".
  SmallVocabulary() {
    for (int id = 0; id < 107; ++id) {
      const char* control = id == 0     ? "<pad>"
                            : id == 1   ? "<eos>"
                            : id == 2   ? "<bos>"
                            : id == 50  ? "<|tool_response>"
                            : id == 106 ? "<turn|>"
                                        : nullptr;
      // As converters do it, one that is shown is typed as user-defined.
      if (control != nullptr) {
        Add(control, id == 50 ? 4 : 3);
      } else {
        Add(fmt::format("piece{}", id), 1);
      }
    }
    for (int byte = 0; byte < 256; ++byte) Add(fmt::format("<0x{:02X}>", byte), 6);
    for (const char* piece : {"a", "b", "ab"}) Add(piece, 1);
  }
};

class GgufTextTest : public testing::Test {
 protected:
  GgufTextTest()
      : path_(std::filesystem::path(testing::TempDir()) /
              fmt::format("{}.gguf",
                          testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~GgufTextTest() override { std::filesystem::remove(path_); }

  static void AddTokenizer(GgufWriter& writer, const char* merge = "a b",
                           const char* model = "gemma4") {
    const SmallVocabulary vocabulary;
    const std::vector<std::string_view> pieces(vocabulary.pieces.begin(), vocabulary.pieces.end());
    writer.AddString("tokenizer.ggml.model", model);
    writer.AddStrings("tokenizer.ggml.tokens", pieces);
    writer.AddI32s("tokenizer.ggml.token_type", vocabulary.types);
    writer.AddStrings("tokenizer.ggml.merges", std::vector<std::string_view>{merge});
    writer.AddU32("tokenizer.ggml.eos_token_id", 106);
  }
  Result<TextModel> Load(const GgufWriter& writer) const {
    std::ofstream(path_, std::ios::binary) << writer.Header();
    return TextModel::Load(path_);
  }

  const std::filesystem::path path_;
};

TEST_F(GgufTextTest, TokenizerTemplateStopsAndSamplingComeFromTheFile) {
  GgufWriter writer;
  AddTokenizer(writer);
  writer.AddString("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}");
  writer.AddI32s("tokenizer.ggml.suppress_tokens", std::vector<int32_t>{7});
  const auto text = Load(writer);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const Tokenizer& tokenizer = *text->tokenizer;
  EXPECT_THAT(tokenizer.Encode("ab", SpecialTokens::kPlain), ElementsAre(365));
  EXPECT_THAT(tokenizer.Encode("ba<turn|><|tool_response>", SpecialTokens::kParse),
              ElementsAre(364, 363, 106, 50));
  EXPECT_TRUE(tokenizer.IsSpecial(50));
  EXPECT_TRUE(text->chat_template.ok());
  EXPECT_THAT(text->defaults.stop_ids, ElementsAre(106, 1, 50));
  EXPECT_EQ(text->defaults.sampling.top_k, 64);
  EXPECT_EQ(text->defaults.sampling.top_p, 0.95f);
  EXPECT_THAT(text->defaults.sampling.suppress_tokens, ElementsAre(7));
}

TEST_F(GgufTextTest, AFileWithoutTextSaysSo) {
  const auto text = Load(GgufWriter());
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_THAT(text->tokenizer.error().message, HasSubstr("no tokenizer"));
  EXPECT_THAT(text->chat_template.error().message, HasSubstr("no chat template"));
  EXPECT_TRUE(text->defaults.sampling.greedy());
}

TEST_F(GgufTextTest, WithoutATemplateOnlyTheFilesOwnEndStops) {
  GgufWriter writer;
  AddTokenizer(writer);
  writer.AddF32("general.sampling.temp", 0.5f);
  const auto text = Load(writer);
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_THAT(text->defaults.stop_ids, ElementsAre(106));
  EXPECT_EQ(text->defaults.sampling.temperature, 0.5f);
}

TEST_F(GgufTextTest, TokenizersThatAreNotGemmasAreRefused) {
  GgufWriter other;
  AddTokenizer(other, "a b", "llama");
  EXPECT_THAT(Load(other).error().message, HasSubstr("'llama' is not 'gemma4'"));
  for (const char* merge : {"ab", "a b a"}) {
    GgufWriter bad;
    AddTokenizer(bad, merge);
    EXPECT_THAT(Load(bad).error().message, HasSubstr("a merge is not two pieces"));
  }
  GgufWriter hot;
  AddTokenizer(hot);
  hot.AddF32("general.sampling.temp", -1.0f);
  EXPECT_THAT(Load(hot).error().message, HasSubstr("general.sampling"));
}

}  // namespace
}  // namespace lapidary
