#include "server/rendered_prompt.h"

#include "server/media_identifier.h"
#include "server/random_id.h"

namespace lapidary {
namespace {

// As generation_request.cc and constraint_request.cc read them.
OrderedJson SamplingJson(const GenerationRequest& request, int32_t max_new_tokens,
                         const OrderedJson& form) {
  const SamplingParams& sampling = request.sampling;
  OrderedJson json = {{"n", request.num_choices},
                      {"max_tokens", max_new_tokens},
                      {"min_tokens", request.min_tokens},
                      {"temperature", sampling.temperature},
                      {"top_p", sampling.top_p},
                      {"top_k", sampling.top_k},
                      {"min_p", sampling.min_p},
                      {"repetition_penalty", sampling.repetition_penalty},
                      {"presence_penalty", sampling.presence_penalty},
                      {"frequency_penalty", sampling.frequency_penalty},
                      {"stop", request.stop},
                      {"stop_token_ids", request.stop_token_ids},
                      {"include_stop_str_in_output", request.include_stop_text},
                      {"ignore_eos", request.ignore_eos},
                      {"skip_special_tokens", request.skip_special},
                      {"bad_words", request.bad_words}};
  if (request.has_seed) json["seed"] = static_cast<int64_t>(sampling.seed);
  if (sampling.num_logprobs >= 0) json["logprobs"] = sampling.num_logprobs;
  if (request.num_prompt_logprobs >= 0) json["prompt_logprobs"] = request.num_prompt_logprobs;
  if (!sampling.allowed_tokens.empty()) json["allowed_token_ids"] = sampling.allowed_tokens;
  for (const LogitBias& bias : sampling.logit_bias) {
    json["logit_bias"][std::to_string(bias.id)] = bias.bias;
  }
  json.update(form);
  return json;
}

// Null where there are none. A video's frames are items of their own.
OrderedJson FeaturesJson(const GenerationJob::Prompt& prompt, const MediaTokens& tokens) {
  const Request& request = prompt.request;
  if (request.media == nullptr) return nullptr;
  OrderedJson hashes = OrderedJson::object();
  OrderedJson places = OrderedJson::object();
  for (size_t idx = 0; idx < request.media->size(); ++idx) {
    const SoftTokenRun& run = (*request.media)[idx];
    const bool is_frame = request.prompt.ids[run.position] == tokens.video;
    const char* kind = is_frame ? "video" : run.is_image ? "image" : "audio";
    hashes[kind].push_back(MediaIdentifier(request.media_digests[idx]));
    places[kind].push_back({{"offset", run.position}, {"length", run.length}});
  }
  return {{"mm_hashes", std::move(hashes)}, {"mm_placeholders", std::move(places)}};
}

}  // namespace

OrderedJson FormFields(const OrderedJson& body) {
  OrderedJson form = OrderedJson::object();
  for (const char* name : {"response_format", "structured_outputs", "guided_json", "guided_regex",
                           "guided_choice", "guided_grammar", "json_schema", "grammar"}) {
    if (body.contains(name) && !body[name].is_null()) form[name] = body[name];
  }
  return form;
}

void WriteRenderedPrompts(const GenerationJob& job, const ServedModel& model,
                          const MediaTokens& tokens, const OrderedJson& form, bool as_list,
                          AnswerText* text) {
  if (as_list) text->Append("[");
  for (size_t idx = 0; idx < job.prompts.size() && text->ok(); ++idx) {
    const GenerationJob::Prompt& prompt = job.prompts[idx];
    if (idx > 0) text->Append(",");
    // Written token by token: a tree would take several times the text.
    text->Append("{\"request_id\":" + DumpJson(RandomId("gen-")) + ",\"token_ids\":[");
    for (size_t at = 0; at < prompt.ids().size() && text->ok(); ++at) {
      if (at > 0) text->Append(",");
      text->Append(std::to_string(prompt.ids()[at]));
    }
    OrderedJson rest = {
        {"features", FeaturesJson(prompt, tokens)},
        {"sampling_params", SamplingJson(job.request, *prompt.request.max_new_tokens, form)},
        {"model", model.name()},
        {"stream", job.request.stream},
        {"priority", job.request.priority}};
    if (!job.request.cache_salt.empty()) rest["cache_salt"] = job.request.cache_salt;
    text->Append("]," + DumpJson(rest).substr(1));
  }
  if (as_list) text->Append("]");
}

}  // namespace lapidary
