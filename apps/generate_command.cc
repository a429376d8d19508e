// `lapidary generate`: one prompt, one answer.
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>

#include "apps/answer_printer.h"
#include "apps/commands.h"
#include "apps/constraint_flags.h"
#include "apps/draft_report.h"
#include "apps/media_flags.h"
#include "apps/model_flags.h"
#include "apps/sampling_flags.h"
#include "apps/size_words.h"
#include "front/conversation.h"
#include "request/prepare_request.h"
#include "request/text_stream.h"
#include "session/constraint_compiler.h"

namespace lapidary {
namespace {

struct GenerateFlags {
  ModelFlags model;
  // Exactly one of these is the prompt.
  std::optional<std::string> text;
  std::optional<std::string> chat;
  std::optional<std::string> ids;
  MediaFlags media;
  std::string system_prompt;
  bool think = false;
  SamplingFlags sampling;
  StopFlags stop;
  ConstraintFlags form;
  std::vector<std::string> bad_words;
  int32_t max_tokens = 128;
  bool json = false;
};

Result<ChatPrompt> ChatMessage(const GenerateFlags& flags, const TextModel& model) {
  if (flags.chat->empty()) return MakeError("--chat: the message is empty");
  RETURN_IF_ERROR(CheckUtf8(*flags.chat, "--chat"));
  RETURN_IF_ERROR(CheckUtf8(flags.system_prompt, "--system-prompt"));
  Conversation conversation;
  conversation.set_system_prompt(flags.system_prompt);
  conversation.set_thinking(flags.think);
  conversation.AddUser(*flags.chat, std::ssize(flags.media.images), std::ssize(flags.media.audio));
  return EncodeChatPrompt(model, conversation.Input());
}

Result<ChatPrompt> MakePrompt(const GenerateFlags& flags, const TextModel& model) {
  if (flags.chat) return ChatMessage(flags, model);
  ChatPrompt prompt;
  if (flags.ids) {
    ASSIGN_OR_RETURN(prompt.ids, ParseIds(*flags.ids));
    return prompt;
  }
  RETURN_IF_ERROR(CheckUtf8(*flags.text, "--prompt"));
  if (!model.tokenizer.ok()) return model.tokenizer.error();
  prompt.ids = EncodeRawPrompt(*model.tokenizer, *flags.text);
  return prompt;
}

Result<AnswerRequest> ReadAnswerRequest(const GenerateFlags& flags, const ModelFiles& files) {
  RETURN_IF_ERROR(flags.stop.Check());
  for (const std::string& word : flags.bad_words) RETURN_IF_ERROR(CheckUtf8(word, "--bad-word"));
  AnswerRequest asked;
  ASSIGN_OR_RETURN(asked.sampling, flags.sampling.Over(files.text->defaults.sampling,
                                                       files.description.plan.vocab_size));
  asked.max_tokens = flags.max_tokens;
  asked.min_tokens = flags.stop.min_tokens;
  asked.bad_words = flags.bad_words;
  asked.stop = flags.stop.strings;
  asked.ignore_eos = flags.stop.ignore_eos;
  ASSIGN_OR_RETURN(asked.constraint, flags.form.Read());
  asked.constraint_field = flags.form.name();
  return asked;
}

// The request but for its grammar, complete with what reads its answer.
Result<PreparedRequest> Prepare(const GenerateFlags& flags, const ModelFiles& files,
                                PreparedPrompt prompt) {
  ASSIGN_OR_RETURN(const AnswerRequest asked, ReadAnswerRequest(flags, files));
  const ChatRules rules = {.thinks = flags.think};
  const ModelPlan& plan = files.description.plan;
  PreparedRequest prepared;
  const auto bad =
      PrepareRequest({.text = *files.text,
                      .vocab_size = plan.vocab_size,
                      .max_model_len = plan.max_context,
                      .style = FieldStyle::kFlag},
                     asked, flags.chat ? &rules : nullptr, {std::move(prompt)}, &prepared);
  if (bad) return MakeError("{}", bad->message);
  prepared.requests[0].prompt.cache_points.clear();
  prepared.requests[0].goes_on = false;  // No other prompt follows.
  // What is printed is the whole output: without --think that is the answer alone.
  if (!flags.think) prepared.reader.parser.reset();
  if (!prepared.form) return prepared;
  ConstraintCompiler compiler(files.text, plan.vocab_size);
  auto compiled = compiler.Compile(*prepared.form);
  if (!compiled.ok()) {
    const std::string& field = prepared.form_field;
    const char* rule = flags.bad_words.empty() ? "--min-tokens" : "--bad-word";
    return MakeError("{}: {}", field.empty() ? rule : field, compiled.error().message);
  }
  prepared.requests[0].grammar = std::move(*compiled);
  return prepared;
}

// The answer as it grows: kept for --json, printed at once without.
class Output {
 public:
  // `splits`: thoughts are apart from the answer, as AnswerPrinter shows them.
  Output(bool has_text, bool splits, bool prints)
      : has_text_(has_text), splits_(splits), prints_(prints) {}

  void Take(const TextEvent& event) {
    for (const SampledToken& token : event.request.tokens) {
      if (!has_text_) Print(fmt::format("{}{}", ids_.empty() ? "" : " ", token.id));
      ids_.push_back(token.id);
    }
    for (const OutputEvent& output : event.output) {  // Without a parser all is content.
      const bool is_thought = output.kind == OutputEvent::Kind::kReasoning;
      (is_thought ? thought_ : text_) += output.text;
      if (!splits_) Print(output.text);
      if (splits_ && prints_) printer_.Print(output);
    }
    if (!event.request.finish) return;
    if (splits_ && prints_) printer_.Finish();
    if (!splits_) Print("\n");
  }

  const std::vector<int32_t>& ids() const { return ids_; }
  Json Text() const { return has_text_ ? Json(text_) : Json(nullptr); }
  const std::string& thought() const { return thought_; }

 private:
  void Print(std::string_view text) const {
    if (!prints_ || text.empty()) return;
    const std::string shown = is_terminal_ ? WithoutControls(text) : std::string(text);
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
  }

  const bool has_text_;
  const bool splits_;
  const bool prints_;
  const bool is_terminal_ = isatty(STDOUT_FILENO) == 1;
  AnswerPrinter printer_;
  std::vector<int32_t> ids_;
  std::string text_;
  std::string thought_;
};

// Reads the request to its end and returns its last event.
Result<RequestEvent> Follow(TextStream stream, Output& output) {
  while (true) {
    TextEvent event = stream.Next();
    if (event.request.finish == FinishReason::kError) return MakeError("{}", event.request.error);
    output.Take(event);
    if (event.request.finish) return std::move(event.request);
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
  ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::Open(flags.model.model));
  const ModelPlan& plan = files.description.plan;
  const TextModel& text = *files.text;
  PreparedPrompt prompt;
  ASSIGN_OR_RETURN(prompt.text, MakePrompt(flags, text));
  ASSIGN_OR_RETURN(const PromptMedia media, flags.media.Encode(files.description, flags.model));
  if (!flags.ids && !media.empty()) {
    ASSIGN_OR_RETURN(prompt.media, ExpandAndPlaceMedia(plan, *text.tokenizer, media, &prompt.text));
  } else if (plan.media_tokens || !media.empty()) {
    ASSIGN_OR_RETURN(prompt.media, PlaceMedia(plan, prompt.text.ids, media));
  }
  const std::vector<int32_t> prompt_ids = prompt.text.ids;
  const PlacedMedia placed = prompt.media;
  if (plan.media_tokens) ReplaceIdsBeyondVocabulary(plan, placed, prompt.text.ids);
  RETURN_IF_ERROR(CheckPrompt(plan, prompt.text.ids, flags.max_tokens));
  ASSIGN_OR_RETURN(const PreparedRequest prepared, Prepare(flags, files, std::move(prompt)));

  ASSIGN_OR_RETURN(
      const std::unique_ptr<Session> session,
      flags.model.LoadSession(std::move(files), std::ssize(prompt_ids) + flags.max_tokens));
  const auto& tokenizer = session->text().tokenizer;
  ASSIGN_OR_RETURN(RequestStream stream, session->Start(prepared.requests[0]));
  Output output(tokenizer.ok(), /*splits=*/flags.think, /*prints=*/!flags.json);
  ASSIGN_OR_RETURN(
      const RequestEvent last,
      Follow(TextStream(std::move(stream), tokenizer.ok() ? &*tokenizer : nullptr, prepared.reader),
             output));
  if (flags.form.any() && last.finish == FinishReason::kLength) {
    spdlog::warn("the answer was cut at {} tokens (--max-tokens): it has not the form asked for",
                 flags.max_tokens);
  }
  if (!flags.json) return {};
  Json json = {{"prompt_ids", prompt_ids},
               {"output_ids", output.ids()},
               {"text", output.Text()},
               {"finish_reason", FinishReasonName(*last.finish)},
               {"timings", TimingsJson(last.timings, session->load_ms(), output.ids().size())}};
  if (!flags.media.empty()) json["media"] = MediaJson(placed);
  if (flags.think) json["reasoning"] = output.thought();
  const EngineStats stats = session->engine().stats();
  json["steps"] = stats.num_steps;
  json["drafting"] = DraftReport(stats.drafts);
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
  CLI::App* command = command_line.Add(
      "generate", "Continue one prompt, or answer one message", [flags]() -> Status {
        RETURN_IF_ERROR(flags->model.Find(/*media=*/!flags->media.empty(), /*drafts=*/true));
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
  command
      ->add_flag("--think", flags->think,
                 "Let the model think before it answers; thoughts go to stderr, or are dimmed on a "
                 "terminal")
      ->needs(chat)
      ->group(kPrompt);
  command->add_option("--max-tokens", flags->max_tokens, "Most tokens to generate")
      ->group("Stopping")
      ->transform(SizeWords())
      ->check(CLI::Range(1, 1 << 28))
      ->capture_default_str();
  flags->media.AddTo(*command);
  flags->stop.AddTo(*command);
  flags->form.AddTo(*command);
  command
      ->add_option("--bad-word", flags->bad_words,
                   "A word that is not said; may be given several times")
      ->group("Form of the answer (at most one)")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  flags->sampling.AddTo(*command);
  command->add_flag("--json", flags->json,
                    "Print one JSON object at the end: ids, text, why it stopped, timings");
  flags->model.AddTo(*command);
  flags->model.lora.AddTo(*command);
  flags->model.drafting.AddTo(*command);
}

}  // namespace lapidary
