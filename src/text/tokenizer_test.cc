#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <sstream>
#include <thread>

#include "base/json.h"
#include "text/tokenizer_test_util.h"

namespace lapidary {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ids = std::vector<int32_t>;

const std::string kDataDir = std::string(LAPIDARY_SOURCE_DIR) + "/tests/data/tokenizer/";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

const Tokenizer& Mini() {
  static const Tokenizer tokenizer = [] {
    auto loaded = Tokenizer::Load(kDataDir + "tokenizer-mini.json");
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    return *std::move(loaded);
  }();
  return tokenizer;
}

Tokenizer FromFile(const json& file) {
  auto tokenizer = Tokenizer::FromJson(file.dump(), "test");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return *std::move(tokenizer);
}

std::string LoadError(const std::string& text) {
  auto tokenizer = Tokenizer::FromJson(text, "test.json");
  EXPECT_FALSE(tokenizer.ok());
  return tokenizer.ok() ? "" : tokenizer.error().message;
}

std::vector<std::string> Pieces(const Tokenizer& tokenizer, std::string_view text,
                                SpecialTokens mode = SpecialTokens::kParse) {
  std::vector<std::string> pieces;
  for (const int32_t id : tokenizer.Encode(text, mode)) {
    pieces.emplace_back(tokenizer.IdToPiece(id).value_or("?"));
  }
  return pieces;
}

// The definition of BPE, by rescanning: every (merge rank, position) choice spelled out.
std::vector<std::string> NaiveBpe(const json& file, std::vector<std::string> symbols) {
  while (true) {
    size_t best_rank = file["model"]["merges"].size();
    size_t best_idx = 0;
    for (size_t idx = 0; idx + 1 < symbols.size(); ++idx) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        const json& merge = file["model"]["merges"][rank];
        if (merge[0] == symbols[idx] && merge[1] == symbols[idx + 1]) {
          best_rank = rank;
          best_idx = idx;
        }
      }
    }
    if (best_rank == file["model"]["merges"].size()) return symbols;
    symbols[best_idx] += symbols[best_idx + 1];
    symbols.erase(symbols.begin() + best_idx + 1);
  }
}

TEST(TokenizerTest, All46ReferenceTextsHaveGemma4sIds) {
  const std::string inputs = ReadAll(kDataDir + "ggml-vocab-gemma-4.gguf.inp");
  std::istringstream outputs(ReadAll(kDataDir + "ggml-vocab-gemma-4.gguf.out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  int num_texts = 0;
  for (size_t begin = 0; begin <= inputs.size();) {
    const size_t end = std::min(inputs.find(separator, begin), inputs.size());
    const std::string text = inputs.substr(begin, end - begin);
    std::string line;
    ASSERT_TRUE(std::getline(outputs, line)) << "fewer outputs than inputs";
    std::istringstream numbers(line);
    const Ids expected{std::istream_iterator<int32_t>(numbers), {}};
    EXPECT_EQ(Mini().Encode(text, SpecialTokens::kParse), expected) << "text: " << text;
    EXPECT_EQ(Mini().Decode(expected, /*skip_special=*/false).value(), text);
    ++num_texts;
    begin = end + separator.size();
  }
  EXPECT_EQ(num_texts, 46);
}

TEST(TokenizerTest, EmptyTextHasNoIdsAndNoBos) {
  EXPECT_THAT(Mini().Encode("", SpecialTokens::kParse), IsEmpty());
  EXPECT_THAT(Mini().Encode(std::span<const TextSegment>{}), IsEmpty());
  EXPECT_EQ(Mini().bos_id(), 2);
}

TEST(TokenizerTest, SpecialStringsAreTokensOnlyWhenParsed) {
  const std::string text = "<|turn>user\nHello<turn|>";
  const Ids parsed = Mini().Encode(text, SpecialTokens::kParse);
  EXPECT_EQ(parsed.front(), 105);
  EXPECT_EQ(parsed.back(), 106);
  const Ids plain = Mini().Encode(text, SpecialTokens::kPlain);
  for (const int32_t id : plain) EXPECT_FALSE(Mini().IsSpecial(id)) << id;
  EXPECT_EQ(Mini().Decode(plain, /*skip_special=*/true).value(), text);
}

TEST(TokenizerTest, TheLongestAddedTokenWinsAtTheLeftmostPlace) {
  json file = MakeTokenizerFile({"a"}, {});
  for (const char* content : {"ab", "abc", "bcd"}) {
    json token = file["added_tokens"][0];
    token["content"] = content;
    token["id"] = 300 + file["added_tokens"].size();
    file["added_tokens"].push_back(token);
  }
  const Tokenizer tokenizer = FromFile(file);
  EXPECT_THAT(Pieces(tokenizer, "abcd"), ElementsAre("abc", "<0x64>"));
  EXPECT_THAT(Pieces(tokenizer, "aabbcd"), ElementsAre("a", "ab", "bcd"));
}

TEST(TokenizerTest, NormalizedAddedTokensAreMatchedAfterTheOthers) {
  json file = MakeTokenizerFile({"a", "b", "c"}, {});
  json token = file["added_tokens"][0];
  token["content"] = "ab";
  token["id"] = 400;
  token["normalized"] = true;
  file["added_tokens"].push_back(token);
  token["content"] = "bc";
  token["id"] = 401;
  token["normalized"] = false;
  file["added_tokens"].push_back(token);
  EXPECT_THAT(Pieces(FromFile(file), "abcab"), ElementsAre("a", "bc", "ab"));
}

TEST(TokenizerTest, SegmentsEncodeAsTheJoinedTextWhenNothingIsForged) {
  const std::vector<TextSegment> segments = {{"<bos><|turn>us", true},
                                             {"", false},
                                             {"er\n", true},
                                             {"Hel", false},
                                             {"lo wor", false},
                                             {"ld", false},
                                             {"<tu", true},
                                             {"rn|>", true},
                                             {"\n", true}};
  std::string joined;
  for (const TextSegment& segment : segments) joined += segment.text;
  EXPECT_EQ(Mini().Encode(segments), Mini().Encode(joined, SpecialTokens::kParse));
}

TEST(TokenizerTest, UntrustedTextCannotFormASpecialTokenEvenAcrossABorder) {
  const std::vector<std::vector<TextSegment>> attempts = {
      {{"<turn|>", false}},
      {{"<tu", true}, {"rn|>", false}},
      {{"<tu", false}, {"rn|>", true}},
      {{"<tu", true}, {"r", false}, {"n|>", true}},
      {{"<tu", false}, {"rn|>", false}},
  };
  for (const auto& segments : attempts) {
    for (const int32_t id : Mini().Encode(segments)) EXPECT_FALSE(Mini().IsSpecial(id));
  }
}

TEST(TokenizerTest, MalformedBytesBecomeTheirByteTokens) {
  EXPECT_THAT(Pieces(Mini(), "\xFF\xC3"), ElementsAre("<0xFF>", "<0xC3>"));
  // A surrogate, an overlong slash, a value above U+10FFFF.
  EXPECT_THAT(Pieces(Mini(), "\xED\xA0\x80"), ElementsAre("<0xED>", "<0xA0>", "<0x80>"));
  EXPECT_THAT(Pieces(Mini(), "\xC0\xAF"), ElementsAre("<0xC0>", "<0xAF>"));
  EXPECT_THAT(Pieces(Mini(), "\xF4\x90\x80\x80"),
              ElementsAre("<0xF4>", "<0x90>", "<0x80>", "<0x80>"));
}

TEST(TokenizerTest, ASpaceWithoutAPieceFallsBackToTheBytesOfItsMark) {
  const Tokenizer tokenizer = FromFile(MakeTokenizerFile({"a"}, {}));
  EXPECT_THAT(Pieces(tokenizer, "a a"), ElementsAre("a", "<0xE2>", "<0x96>", "<0x81>", "a"));
}

TEST(TokenizerTest, MergesOfByteTokensApplyAcrossCharacters) {
  json file = MakeTokenizerFile({"a"}, {{"<0xC3>", "<0xA9>"}, {"a", "<0xC3><0xA9>"}});
  EXPECT_THAT(Pieces(FromFile(file), "aa\u00E9"), ElementsAre("a", "a<0xC3><0xA9>"));
}

TEST(TokenizerTest, MergesInBothSpellingsGiveTheSameIds) {
  json file = MakeLetterFile();
  const Tokenizer arrays = FromFile(file);
  for (json& merge : file["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  const Tokenizer strings = FromFile(file);
  const std::string text = "the quick brown fox aaaaaaaaaaaaaaa jumps";
  EXPECT_EQ(arrays.Encode(text, SpecialTokens::kPlain),
            strings.Encode(text, SpecialTokens::kPlain));
}

// Ranks are shuffled, so that merges of long pieces come before those of short ones: the case a
// plain left-to-right or monotone scheme gets wrong.
TEST(TokenizerTest, EveryLengthMatchesNaiveBpeUnderShuffledRanks) {
  std::mt19937 random(20260823);
  for (int round = 0; round < 20; ++round) {
    MergePairs merges;
    std::vector<std::string> pieces = {"a", "b", "c"};
    for (int count = 0; count < 40; ++count) {
      const std::string left = pieces[random() % pieces.size()];
      const std::string right = pieces[random() % pieces.size()];
      if (left.size() + right.size() > 7) continue;
      merges.push_back({left, right});
      pieces.push_back(left + right);
    }
    json file = MakeTokenizerFile({"a", "b", "c"}, merges);
    // A pair that was drawn twice keeps the last rank: let the naive version see only that one.
    std::shuffle(file["model"]["merges"].begin(), file["model"]["merges"].end(), random);
    json unique = json::array();
    for (size_t rank = 0; rank < file["model"]["merges"].size(); ++rank) {
      const json& merge = file["model"]["merges"][rank];
      const auto rest = file["model"]["merges"].begin() + rank + 1;
      if (std::find(rest, file["model"]["merges"].end(), merge) == file["model"]["merges"].end()) {
        unique.push_back(merge);
      }
    }
    const Tokenizer tokenizer = FromFile(file);
    file["model"]["merges"] = unique;
    for (size_t length = 0; length <= 64; ++length) {
      std::string text;
      std::vector<std::string> symbols;
      for (size_t idx = 0; idx < length; ++idx) {
        symbols.emplace_back(1, static_cast<char>('a' + random() % 3));
        text += symbols.back();
      }
      EXPECT_EQ(Pieces(tokenizer, text), NaiveBpe(file, symbols)) << text;
    }
  }
}

// The three ways of merging (scan, heap, buckets) are chosen by length. "da" keeps "abcdabcd..."
// one word, but every part is merged before that pair could be.
TEST(TokenizerTest, IdsDoNotDependOnTheLengthOfAWord) {
  const Tokenizer joined = FromFile(
      MakeTokenizerFile({"a", "b", "c", "d"}, {{"a", "b"}, {"c", "d"}, {"ab", "cd"}, {"d", "a"}}));
  for (const size_t repeats : {1, 5, 6, 7, 100, 1023, 1024, 1025, 20000}) {
    std::string text;
    for (size_t idx = 0; idx < repeats; ++idx) text += "abcd";
    const std::vector<std::string> pieces = Pieces(joined, text);
    ASSERT_EQ(pieces.size(), repeats);
    for (const std::string& piece : pieces) ASSERT_EQ(piece, "abcd");
  }
}

TEST(TokenizerTest, RepeatedWordsEncodeAsTheFirstOccurrence) {
  const Tokenizer tokenizer = FromFile(MakeLetterFile());
  std::mt19937 random(7);
  std::string text;
  Ids expected;
  for (int count = 0; count < 20000; ++count) {
    std::string word = " ";
    for (size_t letters = random() % 4 + 1; letters > 0; --letters) {
      word += static_cast<char>('a' + random() % 26);
    }
    const Ids ids = tokenizer.Encode(word, SpecialTokens::kPlain);
    expected.insert(expected.end(), ids.begin(), ids.end());
    text += word;
  }
  EXPECT_EQ(tokenizer.Encode(text, SpecialTokens::kPlain), expected);
}

TEST(TokenizerTest, ManyThreadsGetTheSameIds) {
  const Tokenizer tokenizer = FromFile(MakeLetterFile());
  std::string text;
  for (int count = 0; count < 2000; ++count) text += " word" + std::string(count % 40, 'a');
  const Ids expected = tokenizer.Encode(text, SpecialTokens::kParse);
  std::vector<Ids> results(8);
  std::vector<std::thread> threads;
  for (Ids& result : results) {
    threads.emplace_back([&] { result = tokenizer.Encode(text, SpecialTokens::kParse); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

// Processor time, so that other programs on the machine count less; the best of three.
double SecondsToEncode(const Tokenizer& tokenizer, const std::string& text) {
  std::clock_t best = std::numeric_limits<std::clock_t>::max();
  for (int round = 0; round < 3; ++round) {
    const std::clock_t start = std::clock();
    EXPECT_FALSE(tokenizer.Encode(text, SpecialTokens::kParse).empty());
    best = std::min(best, std::clock() - start);
  }
  return static_cast<double>(best) / CLOCKS_PER_SEC;
}

// n log n alone makes eight times the text 9.2 times the work, a quadratic step 64 times. The limit
// lies between the two, as many times above the one as below the other, so that data that no longer
// fits the cache and a busy machine do not fail it.
TEST(TokenizerSpeedTest, EightTimesTheTextTakesNothingLikeSixtyFourTimesAsLong) {
  constexpr double kLimit = 24;
  const Tokenizer tokenizer = FromFile(MakeLetterFile());
  std::mt19937 random(1);
  const auto letter = [&] { return static_cast<char>('a' + random() % 26); };
  std::string same(8 << 20, 'a');
  std::string letters(8 << 20, ' ');
  std::string words(8 << 20, ' ');
  std::string almost_special(8 << 20, '<');
  for (char& c : letters) c = letter();
  for (char& c : words) c = random() % 6 == 0 ? ' ' : letter();
  for (const std::string* text : {&same, &letters, &words, &almost_special}) {
    const double small = SecondsToEncode(tokenizer, text->substr(0, 1 << 20));
    const double large = SecondsToEncode(tokenizer, *text);
    std::printf("%s...: 1 MB %.3f s, 8 MB %.3f s\n", text->substr(0, 20).c_str(), small, large);
    EXPECT_LE(large, kLimit * small);
  }
}

TEST(TokenizerTest, IdsAndPiecesMapBothWays) {
  EXPECT_EQ(Mini().TokenToId("<|channel>"), 100);
  EXPECT_EQ(Mini().TokenToId("no such piece"), std::nullopt);
  EXPECT_EQ(Mini().IdToPiece(238), "<0x00>");
  EXPECT_EQ(Mini().IdToByte(238 + 0xAB), 0xAB);
  EXPECT_EQ(Mini().IdToByte(105), std::nullopt);
  EXPECT_TRUE(Mini().IsSpecial(106));
  for (const int32_t id : {-1, 5, Mini().vocab_size(), INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(Mini().IdToPiece(id), std::nullopt) << id;
    EXPECT_EQ(Mini().IdToByte(id), std::nullopt) << id;
    EXPECT_FALSE(Mini().IsSpecial(id)) << id;
  }
}

TEST(TokenizerTest, Gemma4SpecialsAreCheckedByText) {
  EXPECT_TRUE(Mini().CheckGemma4Specials().ok());
  EXPECT_EQ(Mini().video_id(), 258884);
  // <|turn> is 4 in the small file.
  const Status status = FromFile(MakeTokenizerFile({"a"}, {})).CheckGemma4Specials();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("<|turn> has the id 4"));
}

TEST(TokenizerTest, AMissingVideoTokenKeepsItsReservedId) {
  EXPECT_EQ(FromFile(MakeTokenizerFile({"a"}, {})).video_id(), 258884);
}

TEST(TokenizerFileTest, MissingFileIsAnErrorWithItsPath) {
  const auto tokenizer = Tokenizer::Load("/nonexistent/tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(tokenizer.error().message, HasSubstr("/nonexistent/tokenizer.json"));
  EXPECT_FALSE(Tokenizer::Load(kDataDir).ok()) << "a directory is not a file";
}

TEST(TokenizerFileTest, EveryTruncationIsAnError) {
  const std::string text = MakeTokenizerFile({"a", "b"}, {{"a", "b"}}).dump();
  ASSERT_TRUE(Tokenizer::FromJson(text, "whole").ok());
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(Tokenizer::FromJson(text.substr(0, length), "cut").ok()) << length;
  }
}

TEST(TokenizerFileTest, DeepNestingIsAnErrorNotACrash) {
  EXPECT_THAT(LoadError(std::string(1 << 20, '[')), HasSubstr("nested"));
  std::string objects;
  for (int depth = 0; depth < 100000; ++depth) objects += "{\"a\":";
  EXPECT_THAT(LoadError(objects), HasSubstr("nested"));
}

struct BadFile {
  const char* name;
  const char* pointer;  // where in a valid file
  json value;
  const char* message;  // part of the error
};

class BadFileTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, IsRefusedWithAMessageThatNamesTheField) {
  json file = MakeTokenizerFile({"a", "b"}, {{"a", "b"}});
  file[json::json_pointer(GetParam().pointer)] = GetParam().value;
  const std::string error = LoadError(file.dump());
  EXPECT_THAT(error, HasSubstr("test.json: "));
  EXPECT_THAT(error, HasSubstr(GetParam().message));
}

const json kLowercase = {{"type", "Lowercase"}};
const json kUnknownPair = {"a", "zz"};
const json kUnknownUnion = {"b", "a"};

INSTANTIATE_TEST_SUITE_P(
    TokenizerFile, BadFileTest,
    ::testing::Values(
        BadFile{"NotAnObject", "", 17, "not a JSON object"},
        BadFile{"NoModel", "/model", nullptr, "model is missing"},
        BadFile{"OtherModel", "/model/type", "Unigram", "model.type"},
        BadFile{"NoByteFallback", "/model/byte_fallback", false, "model.byte_fallback"},
        BadFile{"Dropout", "/model/dropout", 0.1, "model.dropout"},
        BadFile{"IgnoreMerges", "/model/ignore_merges", true, "model.ignore_merges"},
        BadFile{"Prefix", "/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
        BadFile{"Suffix", "/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
        BadFile{"VocabOfWrongType", "/model/vocab", 5, "model.vocab has the wrong type"},
        BadFile{"VocabAsList", "/model/vocab", json::array({"a"}), "model.vocab has the wrong"},
        BadFile{"MergesOfWrongType", "/model/merges", "a b", "model.merges has the wrong type"},
        BadFile{"StringId", "/model/vocab/a", "7", "model.vocab['a']"},
        BadFile{"FractionalId", "/model/vocab/a", 7.5, "model.vocab['a']"},
        BadFile{"NestedId", "/model/vocab/a", json::object(), "model.vocab['a']"},
        BadFile{"NegativeId", "/model/vocab/a", -1, "'a' has the id -1"},
        BadFile{"HugeId", "/model/vocab/a", 1u << 31, "'a' has the id"},
        BadFile{"IdBeyond64Bits", "/model/vocab/a", ~uint64_t{0}, "'a' has the id"},
        BadFile{"DuplicateId", "/model/vocab/zz", 7, "the id 7 is given to both"},
        BadFile{"MergeOfUnknownPiece", "/model/merges/0", kUnknownPair, "needs the piece 'zz'"},
        BadFile{"MergeToUnknownPiece", "/model/merges/0", kUnknownUnion, "needs the piece 'ba'"},
        BadFile{"MergeOfEmptyPiece", "/model/merges/0", json::array({"", "a"}), "model.merges[0]"},
        BadFile{"MergeOfThree", "/model/merges/0", json::array({"a", "b", "a"}), "model.merges[0]"},
        BadFile{"MergeOfOne", "/model/merges/0", json::array({"a"}), "model.merges[0]"},
        BadFile{"MergeOfNumbers", "/model/merges/0", json::array({1, 2}), "model.merges[0]"},
        BadFile{"MergeWithoutSpace", "/model/merges/0", "ab", "model.merges[0]"},
        BadFile{"MergeWithTwoSpaces", "/model/merges/0", "a  b", "model.merges[0]"},
        BadFile{"MergeAsObject", "/model/merges/0", json::object(), "model.merges[0]"},
        BadFile{"OtherNormalizer", "/normalizer", kLowercase, "normalizer"},
        BadFile{"NoNormalizer", "/normalizer", nullptr, "normalizer"},
        BadFile{"OtherPattern", "/normalizer/pattern/String", "x", "normalizer"},
        BadFile{"OtherPreTokenizer", "/pre_tokenizer/type", "Whitespace", "pre_tokenizer"},
        BadFile{"InvertedSplit", "/pre_tokenizer/invert", true, "pre_tokenizer"},
        BadFile{"OtherDecoder", "/decoder/decoders/1/type", "ByteLevel", "decoder"},
        BadFile{"NoDecoder", "/decoder", nullptr, "decoder"},
        BadFile{"AddedTokensOfWrongType", "/added_tokens", 3, "added_tokens"},
        BadFile{"AddedTokenOfWrongType", "/added_tokens/1", 3, "added_tokens[1]"},
        BadFile{"AddedTokenStrips", "/added_tokens/1/lstrip", true, "added_tokens[1].lstrip"},
        BadFile{"AddedTokenIsWord", "/added_tokens/1/single_word", true, "single_word"},
        BadFile{"AddedTokenEmpty", "/added_tokens/1/content", "", "added_tokens[1].content"},
        BadFile{"AddedTokenHasNegativeId", "/added_tokens/1/id", -4, "added_tokens[1].id"},
        BadFile{"AddedTokenHasHugeId", "/added_tokens/1/id", ~uint64_t{0}, "added_tokens[1].id"},
        BadFile{"AddedTokenDisagrees", "/added_tokens/1/id", 999, "model.vocab gives it 1"},
        BadFile{"AddedTokenFlag", "/added_tokens/1/special", "yes", "added_tokens[1]"}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(TokenizerFileTest, AMissingByteTokenIsAnErrorThatNamesIt) {
  json file = MakeTokenizerFile({"a"}, {});
  file["model"]["vocab"].erase("<0x7F>");
  EXPECT_THAT(LoadError(file.dump()), HasSubstr("<0x7F>"));
}

TEST(TokenizerFileTest, ATokenListedTwiceIsAnError) {
  std::string text = MakeTokenizerFile({"a"}, {}).dump();
  text.insert(text.find("\"<bos>\":"), "\"<bos>\":900,");
  EXPECT_THAT(LoadError(text), HasSubstr("listed twice"));
}

TEST(TokenizerFileTest, OneElementSequencesAndOlderFilesAreAccepted) {
  json file = MakeTokenizerFile({"a"}, {});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array({file["normalizer"]})}};
  file["pre_tokenizer"] = nullptr;
  file["model"].erase("ignore_merges");
  file["model"].erase("type");
  file["truncation"] = {{"max_length", 4}};
  EXPECT_THAT(Pieces(FromFile(file), "aaaaaa").size(), 6);
}

}  // namespace
}  // namespace lapidary
