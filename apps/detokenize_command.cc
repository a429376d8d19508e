// lapidary detokenize: token ids to text.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/tokenizer_path.h"
#include "text/tokenizer.h"

namespace lapidary {
namespace {

struct DetokenizeOptions {
  std::string model;
  std::vector<int32_t> ids;
  bool skip_special = false;
};

Status Detokenize(const DetokenizeOptions& options) {
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(TokenizerPath(options.model)));
  ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(options.ids, options.skip_special));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

}  // namespace

void AddDetokenizeCommand(CommandLine& command_line) {
  auto options = std::make_shared<DetokenizeOptions>();
  CLI::App* command = command_line.Add(
      "detokenize", "Turn token ids into text, printed exactly, without a newline",
      [options] { return Detokenize(*options); });
  command->add_option("model", options->model, kTokenizerModelHelp)->required();
  command->add_option("--ids", options->ids, "Token ids, separated by commas")
      ->delimiter(',')
      ->required();
  command->add_flag("--skip-special", options->skip_special,
                    "Leave out special tokens such as <bos>");
}

}  // namespace lapidary
