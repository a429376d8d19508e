#include "session/session.h"

#include <algorithm>

namespace lapidary {

namespace {

// Null where nothing is wanted that the model has. Limits of what it has not become 0.
Result<std::unique_ptr<MediaEncoder>> LoadMediaEncoder(const ModelDescription& model,
                                                       const LoadOptions& load,
                                                       MediaLimits* limits) {
  ASSIGN_OR_RETURN(const TowersPlan plan, MakeTowersPlan(model.config, model.name));
  if (!model.towers || !plan.has_vision()) limits->images = limits->videos = 0;
  if (!model.towers || !plan.has_audio()) limits->audio = 0;
  const bool wants_images = limits->images > 0 || limits->videos > 0;
  const bool wants_audio = limits->audio > 0;
  if (!wants_images && !wants_audio) return std::unique_ptr<MediaEncoder>();
  return MediaEncoder::Load(plan, *model.towers, wants_images, wants_audio, load.num_threads,
                            load.device);
}

}  // namespace

Result<std::unique_ptr<Session>> Session::Load(ModelFiles files, const SessionOptions& options) {
  MediaLimits media_limits = options.media;
  ASSIGN_OR_RETURN(std::unique_ptr<MediaEncoder> encoder,
                   LoadMediaEncoder(files.description, options.load, &media_limits));
  ASSIGN_OR_RETURN(LoadedEngine loaded,
                   LoadEngine(std::move(files.description), options.load, options.engine));
  auto session = std::make_unique<Session>(std::move(loaded.engine), std::move(files.text),
                                           options.jump_forward, options.max_grammar_bytes);
  session->load_ms_ = loaded.load_ms;
  session->weights_ = loaded.weights;
  session->weight_table_ = std::move(loaded.weight_table);
  session->media_limits_ = media_limits;
  session->media_encoder_ = std::move(encoder);
  return session;
}

Session::Session(std::unique_ptr<Engine> engine, std::shared_ptr<const TextModel> text,
                 bool jump_forward, size_t max_grammar_bytes)
    : text_(std::move(text)),
      engine_(std::move(engine)),
      link_(std::make_shared<EngineLink>(engine_.get())),
      constraints_(std::make_unique<ConstraintCompiler>(text_, engine_->plan().vocab_size,
                                                        jump_forward, max_grammar_bytes)) {}

Session::~Session() { link_->Cut(); }

int32_t Session::max_model_len() const {
  const int limit = engine_->options().limits.max_model_len;
  return limit > 0 ? limit : plan().max_context;
}

SequenceSpec Session::MakeSpec(const Request& request) const {
  SequenceSpec spec;
  spec.prompt = request.prompt.ids;
  spec.cache_points = request.prompt.cache_points;
  spec.cache_at_end = request.goes_on;
  const int32_t room = max_model_len() - static_cast<int32_t>(spec.prompt.size());
  spec.max_new_tokens = request.max_new_tokens.value_or(std::max(room, 1));
  spec.grammar = request.grammar;
  spec.media = request.media;
  spec.identity.media = request.media_digests;
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
  ASSIGN_OR_RETURN(const std::vector<RequestId> ids,
                   engine_->Submit(MakeSpec(request), num_answers, std::move(sink)));
  std::vector<RequestHandle> handles;
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
