#include "server/generation_request.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/random_bits.h"
#include "server/chat_messages.h"
#include "server/constraint_request.h"
#include "server/ignored_log.h"
#include "text/stop_strings.h"

namespace lapidary {
namespace {

constexpr double kAnyNumber = 1e30;

void ReadLogitBias(RequestFields* fields, SamplingParams* sampling) {
  const OrderedJson* biases = fields->Find("logit_bias");
  if (biases == nullptr) return;
  const auto fail = [&] {
    fields->Fail(BadRequest("logit_bias", "'logit_bias' must map token ids to numbers"));
  };
  if (!biases->is_object()) return fail();
  for (const auto& [key, value] : biases->items()) {
    LogitBias bias;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), bias.id);
    if (error != std::errc() || end != key.data() + key.size() || !value.is_number()) return fail();
    bias.bias = value.get<float>();
    sampling->logit_bias.push_back(bias);
  }
}

void ReadSampling(RequestFields* fields, SamplingParams* sampling) {
  const auto number = [&](const char* name, float fallback, double min = -kAnyNumber,
                          double max = kAnyNumber) {
    return static_cast<float>(fields->Number(name, fallback, min, max));
  };
  sampling->temperature = number("temperature", sampling->temperature, 0.0, 100.0);
  sampling->top_p = number("top_p", sampling->top_p, 0.0, 1.0);
  sampling->top_k = static_cast<int32_t>(fields->Int("top_k", sampling->top_k, -1, INT32_MAX));
  sampling->min_p = number("min_p", sampling->min_p, 0.0, 1.0);
  sampling->repetition_penalty = number("repetition_penalty", sampling->repetition_penalty);
  sampling->presence_penalty = number("presence_penalty", sampling->presence_penalty, -2.0, 2.0);
  sampling->frequency_penalty = number("frequency_penalty", sampling->frequency_penalty, -2.0, 2.0);
  ReadLogitBias(fields, sampling);
  sampling->allowed_tokens = fields->Ids("allowed_token_ids");
  if (fields->Find("allowed_token_ids") != nullptr && sampling->allowed_tokens.empty()) {
    fields->Fail(BadRequest("allowed_token_ids",
                            "'allowed_token_ids' allows nothing: leave it out "
                            "to allow every token"));
  }
}

void ReadSeed(RequestFields* fields, GenerationRequest* request) {
  request->has_seed = fields->Find("seed") != nullptr;
  // One that is made here is told, and every language's numbers hold so many bits.
  constexpr int kSeedBits = 53;
  request->sampling.seed = request->has_seed
                               ? static_cast<uint64_t>(fields->Int("seed", 0, INT64_MIN, INT64_MAX))
                               : RandomBits() >> (64 - kSeedBits);
}

void ReadResume(RequestFields* fields, GenerationRequest* request) {
  const OrderedJson* resume = fields->Find("resume");
  if (resume == nullptr) return;
  if (!resume->is_object()) {
    return fields->Fail(BadRequest("resume", "'resume' must be an object with 'token_ids'"));
  }
  RequestFields inner(*resume, "resume.");
  if (inner.Find("token_ids") == nullptr) {
    inner.Fail(BadRequest("resume.token_ids", "'resume.token_ids' is missing"));
  }
  request->generated = inner.Ids("token_ids");
  if (inner.status()) return fields->Fail(*inner.status());
  if (request->generated.empty()) return;
  if (request->num_choices > 1) {
    fields->Fail(BadRequest("resume", "'resume' goes on with one answer: 'n' must be 1"));
  }
  if (request->echo || request->num_prompt_logprobs >= 0) {
    fields->Fail(BadRequest("resume", "'resume' excludes 'echo' and 'prompt_logprobs'"));
  }
}

void ReadCacheSalt(RequestFields* fields, GenerationRequest* request) {
  if (fields->Find("cache_salt") == nullptr) return;
  constexpr size_t kMaxSaltBytes = 1024;
  request->cache_salt = fields->String("cache_salt", "");
  if (request->cache_salt.empty() || request->cache_salt.size() > kMaxSaltBytes) {
    fields->Fail(
        BadRequest("cache_salt", "'cache_salt' must be a text of 1 to {} bytes", kMaxSaltBytes));
  }
}

void ReadStop(RequestFields* fields, GenerationRequest* request) {
  if (const OrderedJson* stop = fields->Find("stop")) {
    const auto fail = [&] {
      fields->Fail(BadRequest("stop", "'stop' must be a string or a list of strings"));
    };
    if (stop->is_string()) {
      if (*stop != "") request->stop.push_back(stop->get<std::string>());
    } else if (stop->is_array()) {
      for (const OrderedJson& text : *stop) {
        if (!text.is_string()) return fail();
        if (text == "") continue;
        request->stop.push_back(text.get<std::string>());
      }
    } else {
      return fail();
    }
    if (const auto checked = StopStrings::Create(request->stop); !checked.ok()) {
      fields->Fail(BadRequest("stop", "{}", checked.error().message));
    }
  }
  request->stop_token_ids = fields->Ids("stop_token_ids");
  request->include_stop_text = fields->Bool("include_stop_str_in_output", false);
  request->ignore_eos = fields->Bool("ignore_eos", false);
  request->skip_special = fields->Bool("skip_special_tokens", true);
  request->return_token_ids = fields->Bool("return_token_ids", false);
}

void ReadStreaming(RequestFields* fields, GenerationRequest* request) {
  request->stream = fields->Bool("stream", false);
  const OrderedJson* options = fields->Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    fields->Fail(BadRequest("stream_options", "'stream_options' must be an object"));
    return;
  }
  if (!request->stream) {
    fields->Fail(BadRequest("stream_options", "'stream_options' needs 'stream': true"));
  }
  RequestFields inner(*options, "stream_options.");
  request->include_usage = inner.Bool("include_usage", false);
  request->continuous_usage = inner.Bool("continuous_usage_stats", false) && request->include_usage;
  inner.Accept({"include_obfuscation"});
  if (inner.status()) fields->Fail(*inner.status());
}

void ReadMaxTokens(RequestFields* fields, GenerationRequest* request) {
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {  // the later name wins
    if (fields->Find(name) == nullptr) continue;
    request->max_tokens = static_cast<int32_t>(fields->Int(name, 1, 0, INT32_MAX));
    const bool asks_about_prompt = request->echo || request->num_prompt_logprobs >= 0;
    if (request->max_tokens == 0 && !asks_about_prompt) {
      fields->Fail(BadRequest(
          name, "'{}' must be at least 1; 0 needs 'echo': true or 'prompt_logprobs'", name));
    }
  }
}

void ReadAnswerRules(RequestFields* fields, GenerationRequest* request) {
  request->min_tokens = static_cast<int32_t>(fields->Int("min_tokens", 0, 0, INT32_MAX));
  const OrderedJson* words = fields->Find("bad_words");
  if (words == nullptr) return;
  const bool are_texts =
      words->is_array() && std::all_of(words->begin(), words->end(),
                                       [](const OrderedJson& word) { return word.is_string(); });
  if (!are_texts) {
    return fields->Fail(BadRequest("bad_words", "'bad_words' must be a list of strings"));
  }
  for (const OrderedJson& word : *words) request->bad_words.push_back(word.get<std::string>());
}

void ReadPromptLogprobs(RequestFields* fields, GenerationRequest* request) {
  request->num_prompt_logprobs =
      static_cast<int32_t>(fields->Int("prompt_logprobs", -1, 0, kMaxLogprobs));
  if (request->num_prompt_logprobs >= 0 && request->stream) {
    fields->Fail(BadRequest("prompt_logprobs", "'prompt_logprobs' cannot be streamed"));
  }
}

void ReadCommon(RequestFields* fields, const SamplingParams& defaults, GenerationRequest* request) {
  request->model = fields->String("model", "");
  request->sampling = defaults;
  ReadSampling(fields, &request->sampling);
  ReadSeed(fields, request);
  request->priority = static_cast<int32_t>(fields->Int("priority", 0, INT32_MIN, INT32_MAX));
  request->num_choices = static_cast<int>(fields->Int("n", 1, 1, kMaxChoices));
  ReadStop(fields, request);
  ReadStreaming(fields, request);
  ReadPromptLogprobs(fields, request);
  ReadMaxTokens(fields, request);
  ReadAnswerRules(fields, request);
  ReadResume(fields, request);
  ReadCacheSalt(fields, request);
  ReadConstraint(fields, &request->constraint, &request->constraint_field);
  request->constraint_takes_calls = request->constraint_field == "response_format";
  for (const char* name : {"truncate_prompt_tokens", "logits_processors"}) {
    fields->Refuse(name);
  }
  fields->Refuse("use_beam_search", false);
  fields->Accept({"user", "metadata", "store", "service_tier", "safety_identifier",
                  "prompt_cache_key", "prediction"});
}

void ReadChatLogprobs(RequestFields* fields, SamplingParams* sampling) {
  const bool wanted = fields->Bool("logprobs", false);
  const int64_t num_top = fields->Int("top_logprobs", 0, 0, kMaxLogprobs);
  if (num_top > 0 && !wanted) {
    fields->Fail(BadRequest("top_logprobs", "'top_logprobs' needs 'logprobs': true"));
  }
  if (wanted) sampling->num_logprobs = static_cast<int32_t>(num_top);
}

// One prompt, or nothing if it is neither text nor ids.
std::optional<RawPrompt> ReadPrompt(const OrderedJson& json) {
  if (json.is_string()) return json.get<std::string>();
  return ReadTokenIds(json);
}

void ReadPrompts(RequestFields* fields, CompletionRequest* request) {
  const OrderedJson* json = fields->Find("prompt");
  if (json == nullptr) return fields->Fail(BadRequest("prompt", "'prompt' is missing"));
  const bool is_list = json->is_array() && !json->empty() && !json->front().is_number();
  const size_t num_prompts = is_list ? json->size() : 1;
  if (num_prompts * static_cast<size_t>(request->generation.num_choices) > kMaxChoices) {
    return fields->Fail(
        BadRequest("prompt", "at most {} completions can be asked for at once", kMaxChoices));
  }
  for (size_t idx = 0; idx < num_prompts; ++idx) {
    std::optional<RawPrompt> prompt = ReadPrompt(is_list ? (*json)[idx] : *json);
    if (!prompt) {
      return fields->Fail(BadRequest(
          "prompt", "'prompt' must be a string, a list of token ids, or a list of either"));
    }
    request->prompts.push_back(std::move(*prompt));
  }
}

}  // namespace

void ReadChatInput(RequestFields* fields, ChatInput* input, RequestMedia* media) {
  if (const OrderedJson* messages = fields->Find("messages")) {
    if (auto error = ReadMessages(*messages, &input->messages, media)) fields->Fail(*error);
    input->video_texts = media->video_texts;
  } else {
    fields->Fail(BadRequest("messages", "'messages' is missing"));
  }
  if (const OrderedJson* tools = fields->Find("tools")) {
    if (auto error = CheckTools(*tools)) fields->Fail(*error);
    if (!tools->empty()) input->tools = *tools;
  }
  input->continue_final_message = fields->Bool("continue_final_message", false);
  input->add_generation_prompt =
      fields->Bool("add_generation_prompt", !input->continue_final_message);
  if (input->continue_final_message && input->add_generation_prompt) {
    fields->Fail(BadRequest("continue_final_message",
                            "'continue_final_message' needs 'add_generation_prompt': false"));
  }
  const OrderedJson* variables = fields->Find("chat_template_kwargs");
  if (variables == nullptr) return;
  if (!variables->is_object()) {
    fields->Fail(BadRequest("chat_template_kwargs", "'chat_template_kwargs' must be an object"));
    return;
  }
  RequestFields inner(*variables, "chat_template_kwargs.");
  const auto flag = [&](const char* name) -> std::optional<bool> {
    if (inner.Find(name) == nullptr) return std::nullopt;
    return inner.Bool(name, false);
  };
  input->enable_thinking = flag("enable_thinking");
  input->preserve_thinking = flag("preserve_thinking");
  input->extra = *variables;
  if (inner.status()) fields->Fail(*inner.status());
}

void ReadSoftTokenBudget(RequestFields* fields, int* max_soft_tokens) {
  const OrderedJson* options = fields->Find("mm_processor_kwargs");
  if (options == nullptr) return;
  if (!options->is_object()) {
    return fields->Fail(
        BadRequest("mm_processor_kwargs", "'mm_processor_kwargs' must be an object"));
  }
  RequestFields inner(*options, "mm_processor_kwargs.");
  if (inner.Find("max_soft_tokens") == nullptr) return;
  *max_soft_tokens = static_cast<int>(inner.Int("max_soft_tokens", 0, 1, 1 << 20));
  if (inner.status()) return fields->Fail(*inner.status());
  if (const Status valid = CheckSoftTokenBudget(*max_soft_tokens); !valid.ok()) {
    fields->Fail(BadRequest("mm_processor_kwargs.max_soft_tokens", "{}", valid.error().message));
  }
}

void ReadThinking(RequestFields* fields, ChatInput* input) {
  std::optional<bool> wanted;
  const auto read_effort = [&](RequestFields& holder, const std::string& name) {
    const std::string effort = holder.String(name, "");
    if (effort.empty()) return;
    constexpr std::array kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
      holder.Fail(BadRequest(name, "'{}' must be one of {}", name, fmt::join(kEfforts, ", ")));
    }
    wanted = effort != "none" && effort != "minimal";
  };
  // The fields of an object under this name.
  const auto read_object = [&](const char* name, const auto& read) {
    const OrderedJson* object = fields->Find(name);
    if (object == nullptr) return;
    if (!object->is_object()) {
      return fields->Fail(BadRequest(name, "'{}' must be an object", name));
    }
    RequestFields inner(*object, std::string(name) + ".");
    read(inner);
    if (inner.status()) fields->Fail(*inner.status());
  };
  read_effort(*fields, "reasoning_effort");
  read_object("reasoning", [&](RequestFields& inner) {
    read_effort(inner, "effort");
    if (inner.Find("enabled") != nullptr) wanted = inner.Bool("enabled", false);
  });
  read_object("thinking", [&](RequestFields& inner) {
    const std::string type = inner.String("type", "");
    if (type != "enabled" && type != "disabled" && type != "adaptive") {
      inner.Fail(BadRequest("thinking.type", "'thinking.type' must be enabled or disabled"));
    }
    wanted = type != "disabled";
  });
  if (wanted && !input->enable_thinking) input->enable_thinking = wanted;
}

ChatRules MakeChatRules(const ChatInput& input, ToolCallRules calls, bool single_call) {
  return {.thinks = input.enable_thinking.value_or(false),
          .tools = input.tools,
          .calls = std::move(calls),
          .single_call = single_call};
}

void LogUnknownFields(const RequestFields& fields) {
  const std::string names = fields.UnknownFields();
  if (names.empty()) return;
  LogIgnored(fmt::format("a request has fields that are not known here and ignored: {}", names));
}

ApiStatus ParseChatRequest(const OrderedJson& body, const SamplingParams& defaults,
                           ChatRequest* request) {
  RequestFields fields(body);
  ReadCommon(&fields, defaults, &request->generation);
  ReadChatInput(&fields, &request->input, &request->media);
  ReadSoftTokenBudget(&fields, &request->max_soft_tokens);
  ReadChatLogprobs(&fields, &request->generation.sampling);
  ReadThinking(&fields, &request->input);
  request->single_call = !fields.Bool("parallel_tool_calls", true);
  if (!fields.status()) {
    ReadToolChoice(&fields, {request->single_call, request->strict_tools}, &request->input.tools,
                   &request->calls);
  }
  ReadThinkingBudget(&fields, &request->generation.thinking_token_budget);
  fields.Refuse("echo", false);
  fields.Refuse("modalities", OrderedJson::array({"text"}));
  for (const char* name : {"audio", "functions", "function_call", "web_search_options",
                           "chat_template", "documents"}) {
    fields.Refuse(name);
  }
  if (!fields.status()) LogUnknownFields(fields);
  return fields.status();
}

ApiStatus ParseCompletionRequest(const OrderedJson& body, const SamplingParams& defaults,
                                 CompletionRequest* request) {
  RequestFields fields(body);
  request->generation.echo = fields.Bool("echo", false);
  ReadCommon(&fields, defaults, &request->generation);
  // As everywhere: a text has no end of its own, so it gets a few tokens unless more are asked for.
  constexpr int32_t kDefaultMaxTokens = 16;
  const bool answers_in_tokens = request->generation.answers_in_tokens;
  if (!request->generation.max_tokens && !answers_in_tokens) {
    request->generation.max_tokens = kDefaultMaxTokens;
  }
  request->generation.return_token_ids |= answers_in_tokens;
  ReadPrompts(&fields, request);
  request->generation.sampling.num_logprobs =
      static_cast<int32_t>(fields.Int("logprobs", -1, 0, kMaxLogprobs));
  request->add_special_tokens = fields.Bool("add_special_tokens", true);
  fields.Refuse("suffix");
  fields.Refuse("thinking_token_budget");
  fields.Refuse("best_of", request->generation.num_choices);
  if (!fields.status()) LogUnknownFields(fields);
  return fields.status();
}

}  // namespace lapidary
