#include "library/session_core.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>

#include "base/random_bits.h"
#include "library/log.h"
#include "load/load_fields.h"
#include "session/named_model.h"

namespace lapidary::v0 {
namespace {

// Requests of a library come from one program: it may have as many as it has memory for.
constexpr int kMaxQueue = 1 << 20;

DeviceRequest ParseDevice(const std::string& name) {
  if (name == "auto") return DeviceRequest::kAuto;
  if (name == "cpu") return DeviceRequest::kCpu;
  if (name == "cuda") return DeviceRequest::kCuda;
  throw InvalidInput("device '" + name + "' is not there; it must be auto, cpu or cuda");
}

LookupLengths LookupOf(const SessionOptions& options) {
  LookupLengths lookup;
  if (options.prompt_lookup_max != 0) {
    lookup = {.min = std::min(lookup.min, options.prompt_lookup_max),
              .max = options.prompt_lookup_max};
  }
  if (options.prompt_lookup_min != 0) lookup.min = options.prompt_lookup_min;
  return lookup;
}

void TakeMore(const SessionOptions& wanted, LoadOptions* load) {
  for (const auto& [name, value] : wanted.more) {
    if (const Status set = SetLoadField(name, value, load); !set.ok()) Throw(set.error());
  }
}

lapidary::SessionOptions MakeOptions(const SessionOptions& wanted, const DeviceChoice& device) {
  lapidary::SessionOptions options;
  LoadOptions& load = options.load;
  load.device = device;
  load.format = wanted.dummy_weights ? LoadFormat::kDummy : LoadFormat::kAuto;
  load.dummy_seed = wanted.dummy_seed;
  load.num_threads = wanted.num_threads;
  load.num_ranks = wanted.tensor_parallel_size;
  load.limits.max_model_len = wanted.max_model_len;
  load.limits.max_num_seqs = wanted.max_num_seqs;
  load.limits.max_num_batched_tokens = wanted.max_num_batched_tokens;
  if (wanted.kv_cache_memory_bytes > 0) load.kv_cache_memory_bytes = wanted.kv_cache_memory_bytes;
  load.drafting.enabled = wanted.drafting;
  load.drafting.assistant = wanted.draft_model;
  load.drafting.method = wanted.draft_method == "ngram"  ? DraftMethod::kNgram
                         : wanted.draft_method == "auto" ? DraftMethod::kAuto
                                                         : DraftMethod::kAssistant;
  load.drafting.lookup = LookupOf(wanted);
  if (wanted.num_draft_tokens > 0) load.drafting.num_drafts = wanted.num_draft_tokens;
  load.cuda.memory.share = wanted.gpu_memory_utilization;
  load.cuda.batch_invariant = wanted.batch_invariant;
  load.cuda.use_graphs = !wanted.enforce_eager;
  TakeMore(wanted, &load);
  // Random weights are those of the decoder.
  if (load.format != LoadFormat::kDummy) {
    options.media = {
        .images = wanted.max_images, .audio = wanted.max_sounds, .videos = wanted.max_videos};
  }
  options.engine.limits.prefix_caching = wanted.prefix_caching;
  options.engine.max_queue = kMaxQueue;
  return options;
}

void CheckOptions(const SessionOptions& options) {
  const auto check = [](bool is_right, const char* message) {
    if (!is_right) throw InvalidInput(message);
  };
  check(options.max_model_len >= 0, "max_model_len must be at least 1");
  check(options.max_num_seqs >= 0, "max_num_seqs must be at least 1");
  check(options.max_num_batched_tokens >= 0, "max_num_batched_tokens must be at least 1");
  check(options.kv_cache_memory_bytes >= 0, "kv_cache_memory_bytes must be at least 1");
  check(options.num_threads >= 0 && options.num_threads <= 1024,
        "num_threads must be between 1 and 1024");
  check(options.tensor_parallel_size >= 1, "tensor_parallel_size must be at least 1");
  check(options.max_images >= 0 && options.max_sounds >= 0 && options.max_videos >= 0,
        "the limits of images, audio and videos must be at least 0");
  check(options.num_draft_tokens >= 0 && options.num_draft_tokens <= kMaxDrafts,
        "num_draft_tokens is out of range");
  check(options.draft_method == "assistant" || options.draft_method == "ngram" ||
            options.draft_method == "auto",
        "draft_method must be assistant, ngram or auto");
  const LookupLengths lookup = LookupOf(options);
  check(lookup.min >= 1 && lookup.min <= lookup.max && lookup.max <= kMaxLookup,
        "prompt_lookup_min and prompt_lookup_max must be between 1 and 64, the first not above the "
        "second");
  check(options.gpu_memory_utilization >= 0.01 && options.gpu_memory_utilization <= 1.0,
        "gpu_memory_utilization must be between 0.01 and 1");
}

}  // namespace

std::vector<std::string> OptionNames() {
  std::vector<std::string> names;
  for (const LoadField& field : LoadFields()) {
    std::string& name = names.emplace_back(field.name());
    std::replace(name.begin(), name.end(), '-', '_');
  }
  return names;
}

FoundModel FindModel(const std::string& model, const SessionOptions& options,
                     const std::function<bool()>& go_on) {
  PrepareLog();
  CheckOptions(options);  // Before anything is fetched.
  FoundModel found = {model, options.draft_model};
  const bool takes_media = options.max_images + options.max_sounds + options.max_videos > 0;
  const bool has_assistant = options.drafting && options.draft_method != "ngram";
  LoadOptions load;
  TakeMore(options, &load);
  const ModelParts parts = {.weights = !options.dummy_weights && load.format != LoadFormat::kDummy,
                            .media = takes_media,
                            .assistant = has_assistant ? &found.draft_model : nullptr};
  std::atomic<bool> cancelled = false;
  const auto find = [&] { return FindNamedModel(&found.model, parts, cancelled); };
  if (!go_on) {
    ValueOrThrow(find());
    return found;
  }
  constexpr std::chrono::milliseconds kPatience(50);
  auto finding = std::async(std::launch::async, find);
  while (finding.wait_for(kPatience) != std::future_status::ready) {
    if (cancelled) continue;
    try {
      cancelled = !go_on();
    } catch (...) {
      cancelled = true;
      finding.wait();
      throw;
    }
  }
  auto result = finding.get();
  if (cancelled)
    throw Error("fetching " + model + " was stopped; the same call goes on from there");
  ValueOrThrow(std::move(result));
  return found;
}

void Throw(const lapidary::Error& error) {
  if (error.kind == ErrorKind::kBusy) throw Busy(error.message);
  throw InvalidInput(error.message);
}

SessionCore::SessionCore(const std::string& model, const SessionOptions& options)
    : model_(model), process_(getpid()) {
  const auto [path, draft_model] = FindModel(model, options);
  auto files = ValueOrThrow(ModelFiles::Open(path, options.tokenizer));
  const DeviceChoice device = ValueOrThrow(ChooseDevice(ParseDevice(options.device)));
  device_ = device.kind;
  lapidary::SessionOptions inner = MakeOptions(options, device);
  inner.load.drafting.assistant = draft_model;
  try {
    session_ = ValueOrThrow(lapidary::Session::Load(std::move(files), inner));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DeviceError(error.what());
  }
}

SessionCore::~SessionCore() {
  if (is_forked()) session_.release();
}

bool SessionCore::is_forked() const { return getpid() != process_; }

lapidary::Session& SessionCore::session() const {
  if (is_forked()) {
    throw Error(
        "this process was forked from the one that loaded the model, whose threads it does not "
        "have: load the model here, or start processes afresh ('spawn')");
  }
  const std::lock_guard lock(mutex_);
  if (closed_) throw Error("the session is closed");
  return *session_;
}

const Tokenizer& SessionCore::tokenizer() const {
  const Result<Tokenizer>& tokenizer = text().tokenizer;
  if (!tokenizer.ok()) Throw(tokenizer.error());
  return *tokenizer;
}

std::shared_ptr<Mailbox> SessionCore::OpenMailbox() {
  session();
  auto mailbox = std::make_shared<Mailbox>();
  const std::lock_guard lock(mutex_);
  std::erase_if(mailboxes_, [](const auto& known) { return known.expired(); });
  mailboxes_.push_back(mailbox);
  if (closed_) mailbox->Close();
  return mailbox;
}

void SessionCore::Close() {
  if (is_forked()) return;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& known : mailboxes_) {
    if (const auto mailbox = known.lock()) mailbox->Close();
  }
}

SamplingParams SessionCore::MakeSampling(const Request& request) const {
  const Sampling& wanted = request.sampling;
  SamplingParams sampling = text().defaults.sampling;
  const auto replace = [](auto& value, const auto& other) {
    if (other) value = *other;
  };
  replace(sampling.temperature, wanted.temperature);
  replace(sampling.top_k, wanted.top_k);
  replace(sampling.top_p, wanted.top_p);
  replace(sampling.min_p, wanted.min_p);
  replace(sampling.repetition_penalty, wanted.repetition_penalty);
  replace(sampling.presence_penalty, wanted.presence_penalty);
  replace(sampling.frequency_penalty, wanted.frequency_penalty);
  for (const auto& [id, bias] : wanted.logit_bias) sampling.logit_bias.push_back({id, bias});
  sampling.allowed_tokens = wanted.allowed_token_ids;
  sampling.seed = wanted.seed ? *wanted.seed : RandomBits();
  sampling.num_logprobs = request.num_logprobs;
  return sampling;
}

AnswerRequest SessionCore::MakeAnswerRequest(const Request& request) const {
  AnswerRequest asked;
  asked.sampling = MakeSampling(request);
  asked.max_tokens = request.max_tokens;
  asked.min_tokens = request.min_tokens;
  asked.bad_words = request.bad_words;
  asked.stop = request.stop;
  asked.stop_token_ids = request.stop_token_ids;
  asked.include_stop_text = request.include_stop;
  asked.ignore_eos = request.ignore_eos;
  asked.skip_special = request.skip_special_tokens;
  asked.thinking_token_budget = request.thinking_token_budget.value_or(-1);
  asked.priority = request.priority;
  asked.cache_salt = request.prompt.cache_salt;
  asked.num_prompt_logprobs = request.num_prompt_logprobs;
  if (!request.constraint) return asked;
  using Kind = grammar::Constraint::Kind;
  constexpr std::array kKinds = {Kind::kJsonObject, Kind::kJsonSchema, Kind::kRegex,
                                 Kind::kChoice,     Kind::kGrammar,    Kind::kStructuralTag};
  const Kind kind = kKinds.at(static_cast<size_t>(request.constraint->kind));
  asked.constraint = grammar::Constraint{
      .kind = kind, .text = request.constraint->text, .choices = request.constraint->choices};
  // The forms of OpenAI's response_format.
  asked.constraint_takes_calls =
      kind == Kind::kJsonObject || kind == Kind::kJsonSchema || kind == Kind::kStructuralTag;
  return asked;
}

PreparedRequest SessionCore::Prepare(const Request& wanted) const {
  if (wanted.num_answers < 1) throw InvalidInput("n must be at least 1");
  PreparedPrompt prompt;
  prompt.text.ids = wanted.prompt.ids;
  prompt.text.cache_points = wanted.prompt.cache_points;
  const ChatDetails* chat = wanted.prompt.chat.get();
  if (chat != nullptr) {
    prompt.text.starts_in_thought = chat->starts_in_thought;
    prompt.media = chat->media;
  }
  const lapidary::Session& loaded = session();
  PreparedRequest prepared;
  const auto bad =
      PrepareRequest({.text = text(),
                      .vocab_size = loaded.plan().vocab_size,
                      .max_model_len = loaded.max_model_len()},
                     MakeAnswerRequest(wanted), chat && chat->rules ? &*chat->rules : nullptr,
                     {std::move(prompt)}, &prepared);
  if (bad) throw InvalidInput(bad->message);
  if (prepared.form) {
    prepared.requests[0].grammar = ValueOrThrow(session().CompileConstraint(*prepared.form));
  }
  return prepared;
}

}  // namespace lapidary::v0
