// lapidary detokenize: token ids to text.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/commands.h"
#include "apps/model_tokenizer.h"

namespace lapidary {
namespace {

struct DetokenizeOptions {
  std::string model;  // empty: the bundled one
  std::string ids;
  bool has_ids = false;  // else they come from standard input
  bool skip_special = false;
};

// Whatever `tokenize` prints: "1 2 3" or {"ids":[1,2,3]}; and "1,2,3". An empty list is an empty
// text.
Result<std::vector<int32_t>> ReadIds(std::string_view list) {
  constexpr std::string_view kBetween = ", \t\r\n";
  if (const size_t begin = list.find('['); begin != std::string_view::npos) {
    list = list.substr(begin + 1, list.find(']', begin) - begin - 1);
  }
  std::vector<int32_t> ids;
  while (true) {
    list.remove_prefix(std::min(list.find_first_not_of(kBetween), list.size()));
    if (list.empty()) return ids;
    const std::string_view number = list.substr(0, list.find_first_of(kBetween));
    int32_t id = 0;
    const auto [last, failure] = std::from_chars(number.begin(), number.end(), id);
    if (failure != std::errc() || last != number.end()) {
      return MakeError("'{}' is not a token id", number);
    }
    ids.push_back(id);
    list.remove_prefix(number.size());
  }
}

Status Detokenize(DetokenizeOptions options) {
  if (!options.has_ids) options.ids = {std::istreambuf_iterator<char>(std::cin), {}};
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadIds(options.ids));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, LoadTokenizer(options.model));
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
  command->add_option("model", options->model, kTokenizerModelHelp);
  command->add_option_function<std::string>(
      "--ids",
      [options](const std::string& ids) {
        options->ids = ids;
        options->has_ids = true;
      },
      "Token ids as `tokenize` prints them, or separated by commas; without this, from standard "
      "input");
  command->add_flag("--skip-special", options->skip_special,
                    "Leave out special tokens such as <bos>");
}

}  // namespace lapidary
