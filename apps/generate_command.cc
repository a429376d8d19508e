// `lapidary generate`: one prompt, one answer.
#include <fmt/ranges.h>

#include <cstdio>

#include "apps/bundled_models.h"
#include "apps/commands.h"
#include "apps/model_flags.h"
#include "apps/sampling_flags.h"
#include "front/answer_stream.h"
#include "front/conversation.h"
#include "front/prompt.h"
#include "front/request_stream.h"

namespace lapidary {
namespace {

struct GenerateFlags {
  ModelFlags model;
  // Exactly one of these is the prompt.
  std::optional<std::string> text;
  std::optional<std::string> chat;
  std::optional<std::string> ids;
  std::string system_prompt;
  bool think = false;
  SamplingFlags sampling;
  StopFlags stop;
  int32_t max_tokens = 128;
  bool json = false;
};

Result<std::vector<int32_t>> ChatIds(const GenerateFlags& flags, const TextModel& model) {
  if (flags.chat->empty()) return MakeError("--chat: the message is empty");
  RETURN_IF_ERROR(CheckUtf8(*flags.chat, "--chat"));
  RETURN_IF_ERROR(CheckUtf8(flags.system_prompt, "--system-prompt"));
  Conversation conversation;
  conversation.set_system_prompt(flags.system_prompt);
  conversation.set_thinking(flags.think);
  conversation.AddUser(*flags.chat);
  ASSIGN_OR_RETURN(ChatPrompt prompt, EncodeChatPrompt(model, conversation.Input()));
  return std::move(prompt.ids);
}

Result<std::vector<int32_t>> PromptIds(const GenerateFlags& flags, const TextModel& model) {
  if (flags.ids) return ParseIds(*flags.ids);
  if (flags.chat) return ChatIds(flags, model);
  RETURN_IF_ERROR(CheckUtf8(*flags.text, "--prompt"));
  if (!model.tokenizer.ok()) return model.tokenizer.error();
  return EncodeRawPrompt(*model.tokenizer, *flags.text);
}

// The answer as it grows: kept for --json, printed at once without.
class Output {
 public:
  Output(const TextModel& model, StopStrings stop_strings, bool prints) : prints_(prints) {
    if (model.tokenizer.ok()) {
      stream_.emplace(*model.tokenizer,
                      AnswerStreamOptions{.stop_strings = std::move(stop_strings)});
    }
  }

  // False when a stop string is complete, and nothing more may be pushed.
  bool Push(int32_t id, bool is_stop_token) {
    ids_.push_back(id);
    if (!stream_) {
      Print(fmt::format("{}{}", ids_.size() > 1 ? " " : "", id));
      return true;
    }
    std::vector<OutputEvent> events;
    if (!is_stop_token) stream_->Push(id, &events);
    Take(events);
    return !stream_->matched();
  }
  void Finish() {
    std::vector<OutputEvent> events;
    if (stream_) stream_->Finish(&events);
    Take(events);
    Print("\n");
  }

  const std::vector<int32_t>& ids() const { return ids_; }
  Json Text() const { return stream_ ? Json(text_) : Json(nullptr); }

 private:
  void Take(const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {  // Without a parser all is content.
      text_ += event.text;
      Print(event.text);
    }
  }
  void Print(std::string_view text) const {
    if (!prints_ || text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  const bool prints_;
  std::optional<AnswerStream> stream_;
  std::vector<int32_t> ids_;
  std::string text_;
};

// Runs the request to its end and returns its last event.
Result<RequestEvent> Run(Engine& engine, SequenceSpec spec, Output& output) {
  ASSIGN_OR_RETURN(RequestStream stream, RequestStream::Start(engine, std::move(spec)));
  bool is_open = true;
  while (true) {
    RequestEvent event = stream.Next();
    for (const SampledToken& token : event.tokens) {
      const bool is_last = event.finish && &token == &event.tokens.back();
      if (is_open && !output.Push(token.id, is_last && event.finish == FinishReason::kStop)) {
        is_open = false;
        stream.Cancel();
      }
    }
    if (!event.finish) continue;
    if (event.finish == FinishReason::kError) return MakeError("{}", event.error);
    if (!is_open) event.finish = FinishReason::kStop;
    output.Finish();
    return event;
  }
}

Json TimingsJson(const RequestTimings& timings, double load_ms, size_t num_outputs) {
  const double ttft_ms = timings.queue_ms + timings.prefill_ms;
  // The first token is the prefill's.
  const bool has_rate = num_outputs > 1 && timings.decode_ms > 0.0;
  return {{"load_ms", load_ms},
          {"prefill_ms", timings.prefill_ms},
          {"decode_ms", timings.decode_ms},
          {"ttft_ms", ttft_ms},
          {"tokens_per_s",
           has_rate ? 1e3 * static_cast<double>(num_outputs - 1) / timings.decode_ms : 0.0}};
}

Status Generate(const GenerateFlags& flags) {
  if (flags.text.has_value() + flags.chat.has_value() + flags.ids.has_value() != 1) {
    return MakeError("generate needs one prompt: --prompt, --chat or --ids");
  }
  // Whatever can be refused is refused before the weights are read.
  ASSIGN_OR_RETURN(const ModelDescription description, DescribeModel(flags.model.model));
  ASSIGN_OR_RETURN(const TextModel text_model, description.directory
                                                   ? TextModel::Load(*description.directory)
                                                   : TextModel::None(description.name));
  ASSIGN_OR_RETURN(StopStrings stop_strings, flags.stop.Strings());
  if (!flags.stop.strings.empty() && !text_model.tokenizer.ok()) {
    return MakeError("--stop needs text: {}", text_model.tokenizer.error().message);
  }
  SequenceSpec spec;
  ASSIGN_OR_RETURN(spec.prompt, PromptIds(flags, text_model));
  RETURN_IF_ERROR(CheckPrompt(description.plan, spec.prompt, flags.max_tokens));
  spec.max_new_tokens = flags.max_tokens;
  spec.stop_ids = flags.stop.Ids(text_model.defaults);
  spec.cache_at_end = false;  // No other prompt follows.
  ASSIGN_OR_RETURN(SamplingParams sampling,
                   flags.sampling.Over(text_model.defaults.sampling, description.plan.vocab_size));
  spec.sampling = std::make_shared<SamplingParams>(std::move(sampling));

  const std::vector<int32_t> prompt = spec.prompt;
  ASSIGN_OR_RETURN(const LoadedEngine model,
                   flags.model.LoadAsEngine(std::ssize(prompt) + flags.max_tokens));
  Output output(text_model, std::move(stop_strings), /*prints=*/!flags.json);
  ASSIGN_OR_RETURN(const RequestEvent last, Run(*model.engine, std::move(spec), output));
  if (!flags.json) return {};
  const Json json = {{"prompt_ids", prompt},
                     {"output_ids", output.ids()},
                     {"text", output.Text()},
                     {"finish_reason", FinishReasonName(*last.finish)},
                     {"timings", TimingsJson(last.timings, model.load_ms, output.ids().size())}};
  fmt::print("{}\n", json.dump());
  return {};
}

// An optional text; unlike CLI11's own, "" counts as given.
CLI::Option* AddText(CLI::App* command, const char* name, std::optional<std::string>& field,
                     const char* help) {
  return command->add_option_function<std::string>(
      name, [&field](const std::string& text) { field = text; }, help);
}

}  // namespace

void AddGenerateCommand(CommandLine& command_line) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = command_line.Add("generate", "Continue one prompt, or answer one message",
                                       [flags]() -> Status {
                                         RETURN_IF_ERROR(FillDefaultModel(&flags->model.model));
                                         return Generate(*flags);
                                       });
  constexpr const char* kPrompt = "Prompt (one of --prompt, --chat, --ids)";
  auto* text = AddText(command, "--prompt", flags->text,
                       "Text to continue; special tokens such as <|turn> may be spelled out")
                   ->group(kPrompt);
  auto* chat = AddText(command, "--chat", flags->chat,
                       "A message to answer, through the model's chat template")
                   ->group(kPrompt);
  auto* ids =
      AddText(command, "--ids", flags->ids, "Token ids, used as they stand: 2,5,9")->group(kPrompt);
  text->excludes(chat)->excludes(ids);
  chat->excludes(ids);
  command->add_option("--system-prompt", flags->system_prompt, "Instructions before the message")
      ->needs(chat)
      ->group(kPrompt);
  command->add_flag("--think", flags->think, "Let the model think before it answers")
      ->needs(chat)
      ->group(kPrompt);
  command->add_option("--max-tokens", flags->max_tokens, "Most tokens to generate")
      ->group("Stopping")
      ->check(CLI::Range(1, 1 << 28))
      ->capture_default_str();
  flags->stop.AddTo(*command);
  flags->sampling.AddTo(*command);
  command->add_flag("--json", flags->json,
                    "Print one JSON object at the end: ids, text, why it stopped, timings");
  flags->model.AddTo(*command);
}

}  // namespace lapidary
