#include "synth/byte_tokenizer.h"

#include <map>
#include <string>
#include <utility>

namespace lapidary {
namespace {

constexpr std::pair<int, const char*> kSpecialTokens[] = {
    {0, "<pad>"},
    {1, "<eos>"},
    {2, "<bos>"},
    {3, "<unk>"},
    {4, "<mask>"},
    {46, "<|tool>"},
    {47, "<tool|>"},
    {48, "<|tool_call>"},
    {49, "<tool_call|>"},
    {50, "<|tool_response>"},
    {51, "<tool_response|>"},
    {52, "<|\"|>"},
    {98, "<|think|>"},
    {100, "<|channel>"},
    {101, "<channel|>"},
    {105, "<|turn>"},
    {106, "<turn|>"},
    {255999, "<|image>"},
    {256000, "<|audio>"},
    {258880, "<|image|>"},
    {258881, "<|audio|>"},
    {258882, "<image|>"},
    {258883, "<audio|>"},
    {258884, "<|video|>"},
};
constexpr int kNewlineId = 107;
constexpr int kFirstByteId = 238;
constexpr int kSpaceMarkId = 236743;
constexpr int kSmallSpaceMarkId = 494;
constexpr char kSpaceMark[] = "\u2581";

}  // namespace

Result<nlohmann::ordered_json> ByteTokenizer(int vocab_size) {
  using OrderedJson = nlohmann::ordered_json;
  if (vocab_size <= kSmallSpaceMarkId) {
    return MakeError("a vocabulary of {} cannot hold the 256 byte tokens at ids {} to {}",
                     vocab_size, kFirstByteId, kFirstByteId + 255);
  }
  std::map<int, std::string> pieces;
  OrderedJson added = OrderedJson::array();
  for (const auto& [id, text] : kSpecialTokens) {
    if (id >= vocab_size) continue;
    pieces[id] = text;
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  pieces[kNewlineId] = "\n";
  for (int byte = 0; byte < 256; ++byte) {
    pieces[kFirstByteId + byte] = fmt::format("<0x{:02X}>", byte);
  }
  pieces[vocab_size > kSpaceMarkId ? kSpaceMarkId : kSmallSpaceMarkId] = kSpaceMark;

  // Appended, not inserted: looking 262,144 keys up one by one in an ordered map is quadratic.
  OrderedJson::object_t vocab;
  vocab.reserve(vocab_size);
  for (int id = 0; id < vocab_size; ++id) {
    const auto it = pieces.find(id);
    vocab.emplace_back(it != pieces.end() ? it->second : fmt::format("<unused{}>", id), id);
  }

  OrderedJson space = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}};
  OrderedJson unspace = {
      {"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}};
  OrderedJson tokenizer;
  tokenizer["version"] = "1.0";
  tokenizer["truncation"] = nullptr;
  tokenizer["padding"] = nullptr;
  tokenizer["added_tokens"] = std::move(added);
  tokenizer["normalizer"] = std::move(space);
  tokenizer["pre_tokenizer"] = {{"type", "Split"},
                                {"pattern", {{"String", " "}}},
                                {"behavior", "MergedWithPrevious"},
                                {"invert", false}};
  tokenizer["post_processor"] = nullptr;
  tokenizer["decoder"] = {
      {"type", "Sequence"},
      {"decoders", OrderedJson::array({unspace, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}})}};
  OrderedJson model;
  model["type"] = "BPE";
  model["dropout"] = nullptr;
  model["unk_token"] = "<unk>";
  model["continuing_subword_prefix"] = nullptr;
  model["end_of_word_suffix"] = nullptr;
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
  model["ignore_merges"] = false;
  model["vocab"] = std::move(vocab);
  model["merges"] = OrderedJson::array();
  tokenizer["model"] = std::move(model);
  return tokenizer;
}

}  // namespace lapidary
