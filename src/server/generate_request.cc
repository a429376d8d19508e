#include "server/generate_request.h"

#include <algorithm>
#include <array>

namespace lapidary {
namespace {

constexpr size_t kMaxIdBytes = 128;

// Of vLLM's SamplingParams those that change nothing here: how its own engine hands tokens out.
constexpr std::array kMeaningless = {"output_kind", "detokenize", "spaces_between_special_tokens",
                                     "flat_logprobs", "skip_reading_prefix_cache"};
// What stands beside the sampling.
constexpr std::array kCopied = {"model",      "stream",   "stream_options",
                                "cache_salt", "priority", "resume"};

}  // namespace

ApiStatus GenerateToCompletion(const OrderedJson& body, OrderedJson* completion,
                               std::string* answer_id) {
  RequestFields fields(body);
  *completion = OrderedJson::object();
  const OrderedJson* ids = fields.Find("token_ids");
  if (ids == nullptr) return BadRequest("token_ids", "'token_ids' is missing");
  const std::optional<std::vector<int32_t>> prompt = ReadTokenIds(*ids);
  if (!prompt || prompt->empty()) {
    return BadRequest("token_ids", "'token_ids' must be a list of at least one token id");
  }
  if (const OrderedJson* sampling = fields.Find("sampling_params")) {
    if (!sampling->is_object()) {
      return BadRequest("sampling_params", "'sampling_params' must be an object");
    }
    for (const auto& [name, value] : sampling->items()) {
      const bool is_meaningless =
          std::find(kMeaningless.begin(), kMeaningless.end(), name) != kMeaningless.end();
      if (!is_meaningless) (*completion)[name] = value;
    }
  }
  (*completion)["prompt"] = *ids;
  for (const char* name : kCopied) {
    completion->erase(std::string(name));
    if (const OrderedJson* value = fields.Find(name)) (*completion)[name] = *value;
  }
  *answer_id = fields.String("request_id", "");
  if (answer_id->size() > kMaxIdBytes) {
    return BadRequest("request_id", "'request_id' has {} bytes, at most {} are allowed",
                      answer_id->size(), kMaxIdBytes);
  }
  // Images and audio come with messages; keys and values are computed where they are used.
  for (const char* name : {"features", "kv_transfer_params", "ec_transfer_params"}) {
    fields.Refuse(name);
  }
  fields.Accept({"assistant_tokens_mask", "token_offsets"});
  return fields.status();
}

}  // namespace lapidary
