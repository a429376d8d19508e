#include "session/session.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "session/answer_words.h"

namespace lapidary {

namespace {

// Null where nothing is wanted that the model has and that can be used. Limits of the rest become
// 0, for text needs no towers.
std::unique_ptr<MediaEncoder> LoadMediaEncoder(const ModelDescription& model,
                                               const LoadOptions& load, MediaLimits* limits) {
  if (limits->images == 0 && limits->videos == 0 && limits->audio == 0) return nullptr;
  if (load.device.kind == DeviceKind::kSimulated) {
    limits->images = limits->videos = limits->audio = 0;
    limits->problem = "a simulated device takes no images or audio";
    return nullptr;
  }
  const UsableTowers towers = FindUsableTowers(model.config, model.name);
  limits->problem = towers.problem;
  if (!model.towers || !towers.plan.has_vision()) limits->images = limits->videos = 0;
  if (!model.towers || !towers.plan.has_audio()) limits->audio = 0;
  const bool sees = limits->images > 0 || limits->videos > 0;
  const bool hears = limits->audio > 0;
  std::unique_ptr<MediaEncoder> encoder;
  // All of it, or what can be loaded of it.
  for (const auto& [images, audio] : {std::pair{sees, hears}, {sees, false}, {false, hears}}) {
    if (!images && !audio) continue;
    auto loaded = MediaEncoder::Load(towers.plan, *model.towers, images, audio, load.num_threads,
                                     load.device);
    if (!loaded.ok()) {
      if (limits->problem.empty()) limits->problem = loaded.error().message;
      continue;
    }
    encoder = std::move(*loaded);
    if (!images) limits->images = limits->videos = 0;
    if (!audio) limits->audio = 0;
    break;
  }
  if (encoder == nullptr) limits->images = limits->videos = limits->audio = 0;
  if (!limits->problem.empty()) {
    spdlog::warn("text{}{} only: {}", limits->images > 0 ? " and images" : "",
                 limits->audio > 0 ? " and audio" : "", limits->problem);
  }
  return encoder;
}

}  // namespace

Result<std::unique_ptr<Session>> Session::Load(ModelFiles files, const SessionOptions& options) {
  MediaLimits media_limits = options.media;
  std::unique_ptr<MediaEncoder> encoder =
      LoadMediaEncoder(files.description, options.load, &media_limits);
  LoadOptions load = options.load;
  if (load.device.kind == DeviceKind::kSimulated) {
    load.simulation.vocabulary = AnswerWords(*files.text);
  }
  ASSIGN_OR_RETURN(LoadedEngine loaded,
                   LoadEngine(std::move(files.description), load, options.engine));
  auto session = std::make_unique<Session>(std::move(loaded.engine), std::move(files.text),
                                           options.max_grammar_bytes);
  session->adapter_ = options.adapter;
  session->load_ms_ = loaded.load_ms;
  session->weights_ = loaded.weights;
  session->weight_table_ = std::move(loaded.weight_table);
  session->media_limits_ = media_limits;
  session->media_encoder_ = std::move(encoder);
  return session;
}

Session::Session(std::unique_ptr<Engine> engine, std::shared_ptr<const TextModel> text,
                 size_t max_grammar_bytes)
    : text_(std::move(text)),
      engine_(std::move(engine)),
      link_(std::make_shared<EngineLink>(engine_.get())),
      constraints_(std::make_unique<ConstraintCompiler>(text_, engine_->plan().vocab_size,
                                                        max_grammar_bytes)) {}

Session::~Session() { link_->Cut(); }

int32_t Session::max_model_len() const {
  const int limit = engine_->options().limits.max_model_len;
  return limit > 0 ? limit : plan().max_context;
}

SequenceSpec Session::MakeSpec(const Request& request) const {
  SequenceSpec spec;
  spec.prompt = request.prompt.ids;
  spec.generated = request.generated;
  spec.cache_points = request.prompt.cache_points;
  spec.cache_at_end = request.goes_on;
  const int32_t room = max_model_len() - static_cast<int32_t>(spec.prompt.size());
  spec.max_new_tokens = request.max_new_tokens.value_or(std::max(room, 1));
  spec.grammar = request.grammar;
  spec.matcher = request.matcher;
  spec.media = request.media;
  spec.adapter = request.adapter != nullptr ? request.adapter : adapter_;
  spec.identity.media = request.media_digests;
  spec.identity.salt = request.cache_salt;
  spec.stop_ids = request.stop_ids;
  // A grammar ends with a stop token of the checkpoint: behind it nothing is defined.
  if (!request.ignore_eos || (request.grammar != nullptr && request.grammar->ends())) {
    const std::vector<int32_t>& defaults = text_->defaults.stop_ids;
    spec.stop_ids.insert(spec.stop_ids.end(), defaults.begin(), defaults.end());
  }
  spec.priority = request.priority;
  spec.num_prompt_logprobs = request.num_prompt_logprobs;
  spec.sampling = request.sampling != nullptr
                      ? request.sampling
                      : std::make_shared<const SamplingParams>(text_->defaults.sampling);
  return spec;
}

Result<RequestHandle> Session::Submit(const Request& request, EventSink sink) {
  ASSIGN_OR_RETURN(const RequestId id, engine_->Submit(MakeSpec(request), std::move(sink)));
  return RequestHandle(link_, id);
}

Result<std::vector<RequestHandle>> Session::Submit(const Request& request, int num_answers,
                                                   EventSink sink) {
  std::vector<RequestHandle> handles;
  handles.reserve(num_answers);  // Before there is anything that a handle must end.
  ASSIGN_OR_RETURN(const std::vector<RequestId> ids,
                   engine_->Submit(MakeSpec(request), num_answers, std::move(sink)));
  for (const RequestId id : ids) handles.emplace_back(link_, id);
  return handles;
}

Result<RequestStream> Session::Start(const Request& request) {
  auto inbox = std::make_shared<EventInbox>();
  ASSIGN_OR_RETURN(RequestHandle handle,
                   Submit(request, [inbox](RequestEvent event) { inbox->Post(std::move(event)); }));
  return RequestStream(std::move(handle), std::move(inbox));
}

}  // namespace lapidary
