// lapidary render: the exact prompt a chat template makes of a conversation.
#include <cstdio>
#include <iostream>
#include <iterator>

#include "apps/commands.h"
#include "apps/named_models.h"
#include "base/read_file.h"
#include "text/chat_template.h"

namespace lapidary {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct RenderFlags {
  std::string model_dir;
  std::string template_file;
  std::string input_file;
  bool segments = false;
  bool serving = false;
};

Result<std::string> ReadInput(const std::string& path) {
  if (path == "-") return std::string{std::istreambuf_iterator<char>(std::cin), {}};
  return ReadFile(path, kMaxDataFileBytes);
}

Status Render(const RenderFlags& flags) {
  if (flags.model_dir.empty() == flags.template_file.empty()) {
    return MakeError("render needs either a model directory or --template");
  }
  ASSIGN_OR_RETURN(const ChatTemplate chat, flags.model_dir.empty()
                                                ? ChatTemplate::FromFile(flags.template_file)
                                                : ChatTemplate::FromModelDir(flags.model_dir));
  ASSIGN_OR_RETURN(const std::string text, ReadInput(flags.input_file));
  const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return MakeError("{}: not valid JSON", flags.input_file);
  ASSIGN_OR_RETURN(const ChatInput input, ChatInputFromJson(json));
  ASSIGN_OR_RETURN(const auto segments,
                   flags.serving ? chat.RenderPrompt(input) : chat.Render(input));
  std::string output;
  if (flags.segments) {
    OrderedJson list = OrderedJson::array();
    for (const TextSegment& segment : segments) {
      list.push_back({{"text", segment.text}, {"trusted", segment.trusted}});
    }
    output =
        list.dump(2, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace) + "\n";
  } else {
    output = JoinSegments(segments);
  }
  std::fwrite(output.data(), 1, output.size(), stdout);
  return {};
}

}  // namespace

void AddRenderCommand(CommandLine& command_line) {
  auto flags = std::make_shared<RenderFlags>();
  CLI::App* command = command_line.Add(
      "render", "Print the prompt a chat template makes of a conversation", [flags]() -> Status {
        const auto found = FindModel(&flags->model_dir, {.weights = false, .media = false});
        if (!found.ok()) return found.error();
        return Render(*flags);
      });
  command->add_option("model", flags->model_dir, "Model directory whose template to use");
  command->add_option("--template", flags->template_file, "Template file to use instead");
  command
      ->add_option("--input", flags->input_file,
                   "JSON file with messages, tools, enable_thinking, preserve_thinking, "
                   "add_generation_prompt, bos_token; - for standard input")
      ->required();
  command->add_flag("--segments", flags->segments, "Print JSON segments with their trust");
  command->add_flag(
      "--serving", flags->serving,
      "Render as the server does: arguments given as JSON text are parsed, and the prompt "
      "always ends in a model turn");
}

}  // namespace lapidary
