// A loaded model: prompts or conversations in, answers out.
//
//   lapidary::Session session("models/pebble-e");
//   const lapidary::Prompt prompt = session.EncodeChat(R"({"messages": [...]})");
//   const std::vector<lapidary::Output> outputs = session.Generate({{.prompt = prompt}});
//   std::cout << outputs[0].answers[0].text;
//
// Every method may be called from many threads at once. Requests run together, from one call or
// from many. Whatever cannot be done is thrown (error.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lapidary/answer.h"
#include "lapidary/error.h"
#include "lapidary/request.h"
#include "lapidary/stream.h"

namespace lapidary::v0 {

// 0 and empty: the default of the device and the model.
struct SessionOptions {
  std::string device = "auto";     // or "cpu", "cuda"
  std::string tokenizer = {};      // a directory or GGUF file, if not the model
  int max_model_len = 0;           // tokens of a prompt and its answer
  int max_num_seqs = 0;            // running at once
  int max_num_batched_tokens = 0;  // of a step
  int64_t kv_cache_memory_bytes = 0;
  bool prefix_caching = true;
  int num_threads = 0;  // of the CPU; 0: one per core
  // Ranks that share the model. On the CPU they take turns, which is no faster; on a GPU there is
  // one.
  int tensor_parallel_size = 1;

  // A smaller model that proposes tokens; it changes speed and nothing else.
  bool drafting = true;
  // "assistant"; "ngram", text that repeats (needs no smaller model); "auto", both.
  std::string draft_method = "assistant";
  int prompt_lookup_min = 0;  // ngram: how many of the last tokens must have come before, at least
  int prompt_lookup_max = 0;  // and at most
  std::string draft_model = {};  // empty: the one beside the model, if there is one
  int num_draft_tokens = 0;

  // Most images, audio files and videos of a conversation, where the model takes any; 0: none, and
  // what reads them is not loaded.
  int max_images = 4;
  int max_sounds = 1;
  int max_videos = 1;

  bool dummy_weights = false;  // random ones; then a preset's name will do as the model
  uint64_t dummy_seed = 0;

  // On a GPU.
  double gpu_memory_utilization = 0.9;
  bool batch_invariant = false;  // bitwise the same answers whatever else runs; somewhat slower
  bool enforce_eager = false;

  // Further options of the command line, with '_' for '-' in their names (OptionNames), and values
  // as they are written there: {"quantization", "q4_0"}, {"fast_math", "true"}. They take
  // precedence over the fields above.
  std::map<std::string, std::string> more = {};
};

LAPIDARY_EXPORT std::vector<std::string> OptionNames();

// Where the files of a model and of its assistant are on this machine.
struct FoundModel {
  std::string model;
  std::string draft_model;  // empty: none, or the one beside the model
};
// What a Session does first: a name on the Hugging Face Hub ("google/gemma-4-E4B-it",
// "e4b:q4_0") becomes the path of its files, which are fetched if they are not here; a path stays
// one. `go_on` is called several times a second while files are fetched; when it returns false,
// that ends with an Error. What has arrived stays.
LAPIDARY_EXPORT FoundModel FindModel(const std::string& model, const SessionOptions& options = {},
                                     const std::function<bool()>& go_on = {});

class SessionCore;

class LAPIDARY_EXPORT Session {
 public:
  // `model`: a checkpoint directory, a GGUF file, or a name that FindModel knows. Takes as long as
  // reading its weights, after fetching them if need be.
  explicit Session(const std::string& model, const SessionOptions& options = {});
  ~Session();  // as Close()
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Ends what is open and refuses what comes. Memory is free when the last call that is under way
  // in another thread and the last Stream are gone.
  void Close();

  const std::string& model() const;
  std::string device() const;  // "cpu" or "cuda"
  int32_t vocab_size() const;
  int32_t max_model_len() const;
  std::vector<int32_t> stop_token_ids() const;  // the checkpoint's own
  int32_t bos_token_id() const;                 // -1: none

  // Text to ids. Special tokens may be spelled out; <bos> comes first unless it is there or
  // `add_special_tokens` is false.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens = true) const;
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special_tokens = true) const;
  Prompt EncodePrompt(std::string_view text) const;
  // Images and audio for the placeholder tokens of a prompt: a JSON object with "parts", which are
  // parts of a message as in EncodeChat, and if wanted "mm_processor_kwargs".
  Prompt AddMedia(Prompt prompt, std::string_view media) const;

  // A conversation is a JSON object with fields of OpenAI's chat requests: "messages", and if
  // wanted "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs",
  // "mm_processor_kwargs", "add_generation_prompt". Images and audio in it are encoded here.
  Prompt EncodeChat(std::string_view conversation) const;
  // The text that the model's chat template makes of one.
  std::string Render(std::string_view conversation) const;

  // Runs all requests to their ends; outputs are in the order of the requests. `go_on` is called
  // on this thread as requests end, and several times a second, with the number that have; when
  // it returns false the others are cancelled.
  std::vector<Output> Generate(const std::vector<Request>& requests,
                               const std::function<bool(size_t num_done)>& go_on = {});
  // For requests that are read as they are answered.
  Stream Open();

  // What the model expects behind each of these ids: [ids.size(), vocab_size()], before any
  // sampling. Waits until nothing else runs; what comes meanwhile waits too.
  std::vector<float> Logits(const std::vector<int32_t>& ids);

 private:
  std::shared_ptr<SessionCore> core_;
};

// What is logged to stderr: "off", "error", "warning" (the default) or "info".
LAPIDARY_EXPORT void SetLogLevel(const std::string& level);

LAPIDARY_EXPORT const char* Version();

}  // namespace lapidary::v0
