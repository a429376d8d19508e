#include "server/media_parts.h"

#include "base/base64.h"
#include "server/percents.h"

namespace lapidary {
namespace {

// OpenAI's `detail`: what an image may cost.
constexpr int kLowDetail = 70;
constexpr int kHighDetail = 1120;

const OrderedJson* FindValue(const OrderedJson& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

ApiStatus ReadBase64(std::string_view text, const std::string& where, std::string* file) {
  auto bytes = DecodeBase64(text);
  if (!bytes.ok()) return BadRequest(where, "{}: {}", where, bytes.error().message);
  *file = std::move(*bytes);
  return {};
}

// data:[type][;parameters];base64,DATA or file:///PATH or http(s)://HOST/PATH
ApiStatus ReadAddress(const std::string& url, const std::string& where, MediaPart* medium) {
  constexpr std::string_view kFile = "file://";
  if (url.starts_with(kFile)) {
    medium->path = DecodePercents(std::string_view(url).substr(kFile.size()));
    return {};
  }
  if (url.starts_with("http://") || url.starts_with("https://")) {
    medium->url = url;
    return {};
  }
  if (!url.starts_with("data:")) {
    return BadRequest(where, "{} must be http(s)://HOST/PATH or a data: URI", where);
  }
  const size_t comma = url.find(',');
  constexpr std::string_view kBase64 = ";base64";
  if (comma == std::string::npos || !std::string_view(url).substr(0, comma).ends_with(kBase64)) {
    return BadRequest(where, "{} must read data:TYPE;base64,DATA", where);
  }
  return ReadBase64(std::string_view(url).substr(comma + 1), where, &medium->file);
}

// {"url": ...} or the URL itself, which older clients send.
ApiStatus ReadUrl(const OrderedJson& part, const char* name, const std::string& where,
                  MediaPart* medium) {
  const OrderedJson* value = FindValue(part, name);
  const OrderedJson* url = value != nullptr && value->is_string() ? value
                           : value != nullptr                     ? FindValue(*value, "url")
                                                                  : nullptr;
  if (url == nullptr || !url->is_string()) {
    return BadRequest(where, "{} needs a \"{}\" with a string \"url\"", where, name);
  }
  return ReadAddress(url->get_ref<const std::string&>(), fmt::format("{}.{}.url", where, name),
                     medium);
}

ApiStatus ReadDetail(const OrderedJson& part, const std::string& where, int* max_soft_tokens) {
  const OrderedJson* image = FindValue(part, "image_url");
  const OrderedJson* detail = image == nullptr ? nullptr : FindValue(*image, "detail");
  if (detail == nullptr || *detail == "auto") return {};
  if (*detail == "low") {
    *max_soft_tokens = kLowDetail;
  } else if (*detail == "high") {
    *max_soft_tokens = kHighDetail;
  } else {
    const std::string field = where + ".image_url.detail";
    return BadRequest(field, "{} must be \"low\", \"auto\" or \"high\"", field);
  }
  return {};
}

ApiStatus ReadInputAudio(const OrderedJson& part, const std::string& where, MediaPart* medium) {
  const OrderedJson* audio = FindValue(part, "input_audio");
  const OrderedJson* data = audio == nullptr ? nullptr : FindValue(*audio, "data");
  if (data == nullptr || !data->is_string()) {
    return BadRequest(where, "{} needs an \"input_audio\" with a string \"data\"", where);
  }
  return ReadBase64(data->get_ref<const std::string&>(), where + ".input_audio.data",
                    &medium->file);
}

}  // namespace

bool IsMediaPart(std::string_view type) {
  return type == "image_url" || type == "input_audio" || type == "audio_url";
}

ApiStatus ReadMediaPart(const OrderedJson& part, const std::string& where, MediaPart* medium,
                        OrderedJson* placeholder) {
  const std::string type = part["type"];
  medium->where = where;
  if (type == "image_url") {
    medium->kind = MediaKind::kImage;
    *placeholder = {{"type", "image"}};
    RETURN_IF_API_ERROR(ReadDetail(part, where, &medium->max_soft_tokens));
    return ReadUrl(part, "image_url", where, medium);
  }
  medium->kind = MediaKind::kAudio;
  *placeholder = {{"type", "audio"}};
  if (type == "audio_url") return ReadUrl(part, "audio_url", where, medium);
  return ReadInputAudio(part, where, medium);
}

}  // namespace lapidary
