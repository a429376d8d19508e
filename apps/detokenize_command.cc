// lapidary detokenize: token ids to text.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bundled_models.h"
#include "apps/commands.h"
#include "apps/tokenizer_path.h"
#include "text/tokenizer.h"

namespace lapidary {
namespace {

struct DetokenizeOptions {
  std::string model;
  std::string ids;
  bool skip_special = false;
};

// "1,2,3"; blanks around numbers are fine, and an empty list is an empty text.
Result<std::vector<int32_t>> ParseIds(std::string_view list) {
  const auto trim = [](std::string_view text) {
    const size_t begin = std::min(text.find_first_not_of(" \t\n"), text.size());
    return text.substr(begin, text.find_last_not_of(" \t\n") + 1 - begin);
  };
  std::vector<int32_t> ids;
  if (trim(list).empty()) return ids;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view number = trim(list.substr(begin, end - begin));
    int32_t id = 0;
    const auto [last, failure] = std::from_chars(number.begin(), number.end(), id);
    if (failure != std::errc() || last != number.end()) {
      return MakeError("--ids: '{}' is not a token id", number);
    }
    ids.push_back(id);
    begin = end + 1;
  }
  return ids;
}

Status Detokenize(DetokenizeOptions options) {
  ResolveBundled(&options.model);
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(options.ids));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(TokenizerPath(options.model)));
  ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(ids, options.skip_special));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

}  // namespace

void AddDetokenizeCommand(CommandLine& command_line) {
  auto options = std::make_shared<DetokenizeOptions>();
  CLI::App* command =
      command_line.Add("detokenize", "Turn token ids into text, printed exactly, without a newline",
                       [options] { return Detokenize(*options); });
  command->add_option("model", options->model, kTokenizerModelHelp)->required();
  command->add_option("--ids", options->ids, "Token ids, separated by commas")->required();
  command->add_flag("--skip-special", options->skip_special,
                    "Leave out special tokens such as <bos>");
}

}  // namespace lapidary
