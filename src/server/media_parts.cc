#include "server/media_parts.h"

#include "base/base64.h"
#include "server/percents.h"
#include "server/video_parts.h"

namespace lapidary {
namespace {

// OpenAI's `detail`: what an image may cost.
constexpr int kLowDetail = 70;
constexpr int kHighDetail = 1120;

ApiStatus ReadBase64(std::string_view text, const std::string& where, std::string* file) {
  auto bytes = DecodeBase64(text);
  if (!bytes.ok()) return BadRequest(where, "{}: {}", where, bytes.error().message);
  *file = std::move(*bytes);
  return {};
}

ApiStatus ReadUrl(const OrderedJson& part, const char* name, const std::string& where,
                  MediaPart* medium) {
  std::string url;
  RETURN_IF_API_ERROR(FindMediaUrl(part, name, where, &url));
  return ReadMediaUrl(url, fmt::format("{}.{}.url", where, name), medium);
}

ApiStatus ReadDetail(const OrderedJson& part, const std::string& where, int* max_soft_tokens) {
  const OrderedJson* image = FindPartField(part, "image_url");
  const OrderedJson* detail = image == nullptr ? nullptr : FindPartField(*image, "detail");
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
  const OrderedJson* audio = FindPartField(part, "input_audio");
  const OrderedJson* data = audio == nullptr ? nullptr : FindPartField(*audio, "data");
  if (data == nullptr || !data->is_string()) {
    return BadRequest(where, "{} needs an \"input_audio\" with a string \"data\"", where);
  }
  return ReadBase64(data->get_ref<const std::string&>(), where + ".input_audio.data",
                    &medium->file);
}

}  // namespace

const OrderedJson* FindPartField(const OrderedJson& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// data:[type][;parameters];base64,DATA or file:///PATH or http(s)://HOST/PATH
ApiStatus ReadMediaUrl(const std::string& url, const std::string& where, MediaPart* medium) {
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

ApiStatus FindMediaUrl(const OrderedJson& part, const char* name, const std::string& where,
                       std::string* url) {
  const OrderedJson* value = FindPartField(part, name);
  const OrderedJson* found = value != nullptr && value->is_string() ? value
                             : value != nullptr                     ? FindPartField(*value, "url")
                                                                    : nullptr;
  if (found == nullptr || !found->is_string()) {
    return BadRequest(where, "{} needs a \"{}\" with a string \"url\"", where, name);
  }
  *url = found->get_ref<const std::string&>();
  return {};
}

bool IsMediaPart(std::string_view type) {
  return type == "image_url" || type == "input_audio" || type == "audio_url" || type == "video" ||
         type == "video_url";
}

ApiStatus ReadMediaPart(const OrderedJson& part, const std::string& where, RequestMedia* media,
                        OrderedJson* placeholder) {
  const std::string type = part["type"];
  if (type == "video" || type == "video_url") {
    *placeholder = {{"type", "video"}};
    return ReadVideoPart(part, where, media);
  }
  MediaPart& medium = media->parts.emplace_back();
  medium.where = where;
  if (type == "image_url") {
    medium.kind = MediaKind::kImage;
    *placeholder = {{"type", "image"}};
    RETURN_IF_API_ERROR(ReadDetail(part, where, &medium.max_soft_tokens));
    return ReadUrl(part, "image_url", where, &medium);
  }
  medium.kind = MediaKind::kAudio;
  *placeholder = {{"type", "audio"}};
  if (type == "audio_url") return ReadUrl(part, "audio_url", where, &medium);
  return ReadInputAudio(part, where, &medium);
}

}  // namespace lapidary
