// A request's body: any bytes give a request that holds what its fields promise, or an error.
#include <spdlog/spdlog.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "front/video_text.h"
#include "server/generation_request.h"
#include "text/stop_strings.h"

namespace lapidary {
namespace {

void CheckError(const ApiError& error) {
  CHECK_EQ(error.status, 400);
  CHECK(!error.message.empty());
  CHECK(!DumpJson(error.ToJson()).empty());
}

void CheckGeneration(const GenerationRequest& request) {
  CHECK(request.num_choices >= 1 && request.num_choices <= kMaxChoices);
  // No token at all is enough where the prompt itself is asked about.
  const bool asks_about_prompt = request.echo || request.num_prompt_logprobs >= 0;
  CHECK(!request.max_tokens || *request.max_tokens >= (asks_about_prompt ? 0 : 1));
  CHECK(StopStrings::Create(request.stop).ok());
  for (const int32_t id : request.stop_token_ids) CHECK_GE(id, 0);
}

// A medium has its bytes or says where they are; of a video at most 32 frames are left.
void CheckMedia(const ChatRequest& chat) {
  size_t num_frames = 0;
  for (const MediaPart& part : chat.media.parts) {
    CHECK(!part.where.empty());
    CHECK(part.path.empty() || part.url.empty());
    CHECK(part.file.empty() || (part.path.empty() && part.url.empty()));
    num_frames += part.is_video_frame;
  }
  CHECK_LE(num_frames, chat.media.video_texts.size() * kMaxVideoFrames);
  CHECK_GE(num_frames, chat.media.video_texts.size());
  CHECK_EQ(chat.input.video_texts.size(), chat.media.video_texts.size());
}

void CheckBody(std::string_view body) {
  OrderedJson json;
  if (const ApiStatus error = ParseRequestJson(body, &json)) return CheckError(*error);
  ChatRequest chat;
  if (const ApiStatus error = ParseChatRequest(json, SamplingParams(), &chat)) {
    CheckError(*error);
  } else {
    CheckGeneration(chat.generation);
    CheckMedia(chat);
    CHECK(NormalizeMessages(&chat.input.messages).ok());
  }
  CompletionRequest completion;
  if (const ApiStatus error = ParseCompletionRequest(json, SamplingParams(), &completion)) {
    CheckError(*error);
  } else {
    CheckGeneration(completion.generation);
    CHECK(!completion.prompts.empty());
  }
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  spdlog::set_level(spdlog::level::off);  // Unknown fields are logged.
  lapidary::CheckBody({reinterpret_cast<const char*>(data), size});
  return 0;
}
