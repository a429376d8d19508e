// Small tokenizer files for tests and benchmarks.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace lapidary {

using MergePairs = std::vector<std::pair<std::string, std::string>>;

// A valid file in Gemma 4's form: ids 0..4 special, 256 byte tokens from 5 on, then the given code
// points and what `merges` makes of them, in order.
inline nlohmann::json MakeTokenizerFile(const std::vector<std::string>& code_points,
                                        const MergePairs& merges) {
  nlohmann::json vocab = nlohmann::json::object();
  nlohmann::json added = nlohmann::json::array();
  for (const char* name : {"<pad>", "<eos>", "<bos>", "<unk>", "<|turn>"}) {
    added.push_back({{"id", vocab.size()},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocab[name] = vocab.size();
  }
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = vocab.size();
  const auto add = [&](const std::string& piece) {
    if (!vocab.contains(piece)) vocab[piece] = vocab.size();
  };
  for (const std::string& code_point : code_points) add(code_point);
  nlohmann::json merge_list = nlohmann::json::array();
  for (const auto& [left, right] : merges) {
    add(left + right);
    merge_list.push_back({left, right});
  }
  using nlohmann::json;
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}},
      {"pre_tokenizer",
       {{"type", "Split"},
        {"pattern", {{"String", " "}}},
        {"behavior", "MergedWithPrevious"},
        {"invert", false}}},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         json::array({{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                      {{"type", "ByteFallback"}},
                      {{"type", "Fuse"}}})}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", "<unk>"},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"ignore_merges", false},
        {"vocab", vocab},
        {"merges", merge_list}}},
  };
}

// Lower-case letters and the space mark; merges for every pair of letters, every letter after a
// space mark, every third triple, and runs of up to eight 'a'. Any text of letters is one word.
inline nlohmann::json MakeLetterFile() {
  std::vector<std::string> letters;
  for (char c = 'a'; c <= 'z'; ++c) letters.emplace_back(1, c);
  std::vector<std::string> code_points = letters;
  code_points.insert(code_points.end(), {"\u2581", "\n"});
  MergePairs merges;
  merges.push_back({"aaaa", "aaaa"});  // A longer piece may well have the lower rank.
  merges.push_back({"aa", "aa"});
  for (const std::string& left : letters) {
    merges.push_back({"\u2581", left});
    for (const std::string& right : letters) merges.push_back({left, right});
  }
  int counter = 0;
  for (const std::string& first : letters) {
    for (const std::string& second : letters) {
      for (const std::string& third : letters) {
        if (counter++ % 3 == 0) merges.push_back({first + second, third});
      }
    }
  }
  return MakeTokenizerFile(code_points, merges);
}

}  // namespace lapidary
