// lapidary tokenize: text to token ids.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "apps/commands.h"
#include "apps/model_tokenizer.h"

namespace lapidary {
namespace {

struct TokenizeOptions {
  std::string model;  // empty: the bundled one
  std::string text;
  bool has_text = false;  // else the text comes from standard input, to its end
  bool add_bos = false;
  bool no_special = false;
  bool json = false;
};

Status Tokenize(TokenizeOptions options) {
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, LoadTokenizer(options.model));
  const std::string text =
      options.has_text ? options.text : std::string{std::istreambuf_iterator<char>(std::cin), {}};
  std::vector<int32_t> ids =
      tokenizer.Encode(text, options.no_special ? SpecialTokens::kPlain : SpecialTokens::kParse);
  if (options.add_bos) {
    if (tokenizer.bos_id() < 0) return MakeError("--add-bos: the vocabulary has no <bos>");
    ids.insert(ids.begin(), tokenizer.bos_id());
  }
  const std::string line = options.json ? fmt::format("{{\"ids\":[{}]}}\n", fmt::join(ids, ","))
                                        : fmt::format("{}\n", fmt::join(ids, " "));
  std::fwrite(line.data(), 1, line.size(), stdout);
  return {};
}

}  // namespace

void AddTokenizeCommand(CommandLine& command_line) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = command_line.Add("tokenize", "Turn text into token ids",
                                       [options] { return Tokenize(*options); });
  command->add_option("model", options->model, kTokenizerModelHelp);
  command->add_option_function<std::string>(
      "--text",
      [options](const std::string& text) {
        options->text = text;
        options->has_text = true;
      },
      "The text; without this, all of standard input, unchanged");
  command->add_flag("--add-bos", options->add_bos, "Put <bos> in front");
  command->add_flag("--no-special", options->no_special,
                    "Read strings such as <|turn> as plain text, not as special tokens");
  command->add_flag("--json", options->json, "Print {\"ids\":[...]} instead of a line of ids");
}

}  // namespace lapidary
