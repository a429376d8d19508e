#include "eval/pebble_media.h"

#include "base/json_fields.h"
#include "eval/json_lines.h"
#include "eval/pebble_suite.h"
#include "front/prompt.h"
#include "session/prompt_media.h"

namespace lapidary {
namespace {

constexpr size_t kMaxPieces = 256;     // of a sound
constexpr int32_t kMaxNewTokens = 24;  // tools/pebble/evaluate_media.py

// A list of lists or numbers, each number in its range.
bool ReadInts(const Json& list, std::initializer_list<int> limits, std::vector<int>* ints) {
  if (!list.is_array() || list.size() != limits.size()) return false;
  size_t idx = 0;
  for (const int limit : limits) {
    const Json& value = list[idx++];
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(limit)) {
      return false;
    }
    ints->push_back(value.get<int>());
  }
  return true;
}

bool ReadCells(const Json& list, std::vector<PebbleCell>* cells) {
  if (!list.is_array() || list.size() > size_t{kPebbleSide * kPebbleSide}) return false;
  for (const Json& entry : list) {
    std::vector<int> cell;
    if (!ReadInts(entry, {kPebbleSide, kPebbleSide, kNumPebbleMasks, kNumPebbleColors}, &cell)) {
      return false;
    }
    cells->push_back({cell[0], cell[1], cell[2], cell[3]});
  }
  return !cells->empty();
}

bool ReadTones(const Json& list, std::vector<int>* tones) {
  if (!list.is_array() || list.empty() || list.size() > kMaxPieces) return false;
  for (const Json& tone : list) {
    if (!ReadInts(Json::array({tone}), {kNumPebbleTones}, tones)) return false;
  }
  return true;
}

Result<EncodedMedium> Encode(MediaEncoder& encoder, const PebbleMediaItem& item) {
  if (item.is_picture()) return encoder.EncodeImage(DrawPebblePicture(item.cells), 0);
  return encoder.EncodeAudio(PlayPebbleSound(item.tones, item.loudness));
}

}  // namespace

Result<PebbleMediaItem> PebbleMediaItem::Parse(std::string_view line, std::string_view where) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(line, where));
  JsonFields fields(json, std::string(where));
  PebbleMediaItem item;
  item.id = fields.StringOr("id", "");
  item.task = fields.StringOr("task", "");
  item.ask = fields.StringOr("ask", "");
  item.answer = fields.StringOr("answer", "");
  item.loudness = static_cast<int>(fields.IntOr("loudness", 0, {.min = 0, .max = 100}));
  RETURN_IF_ERROR(fields.status());
  const auto cells = json.find("cells");
  const auto tones = json.find("tones");
  const bool is_drawn = cells != json.end() ? ReadCells(*cells, &item.cells)
                                            : tones != json.end() && ReadTones(*tones, &item.tones);
  if (item.id.empty() || item.task.empty() || item.answer.empty() || !is_drawn) {
    return MakeError("{}: an item needs id, task, answer, and cells or tones in their ranges",
                     where);
  }
  return item;
}

Result<std::vector<PebbleMediaItem>> LoadPebbleMediaItems(const std::filesystem::path& path) {
  return LoadItems<PebbleMediaItem>(path);
}

Result<Request> MakePebbleMediaRequest(const TextModel& text, const ModelPlan& plan,
                                       MediaEncoder& encoder, const PebbleMediaItem& item) {
  PebbleItem asked;
  asked.id = item.id;
  const char* kind = item.is_picture() ? "image" : "audio";
  asked.messages = {
      {{"role", "user"}, {"content", {{{"type", kind}}, {{"type", "text"}, {"text", item.ask}}}}}};
  ASSIGN_OR_RETURN(Request request, MakePebbleRequest(text, asked));
  request.max_new_tokens = kMaxNewTokens;
  auto medium = Encode(encoder, item);
  if (!medium.ok()) return MakeError("item {}: {}", item.id, medium.error().message);
  PromptMedia media;
  (item.is_picture() ? media.images : media.audio).push_back({item.id, std::move(*medium)});
  ASSIGN_OR_RETURN(request.prompt.ids, ExpandPlaceholders(plan, request.prompt.ids, media));
  ASSIGN_OR_RETURN(const PlacedMedia placed, PlaceMedia(plan, request.prompt.ids, media));
  ReplaceIdsBeyondVocabulary(plan, placed, request.prompt.ids);
  request.media = placed.runs;
  request.media_digests = placed.digests;
  return request;
}

PebbleAnswer JudgePebbleMediaAnswer(const Tokenizer& tokenizer, const PebbleMediaItem& item,
                                    std::vector<int32_t> ids) {
  PebbleAnswer answer;
  answer.id = item.id;
  answer.text = AnswerText(tokenizer, ids);
  answer.is_right = answer.text == item.answer + "<turn|>";
  answer.ids = std::move(ids);
  return answer;
}

}  // namespace lapidary
