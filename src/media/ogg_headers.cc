#include "media/ogg_headers.h"

#include <ogg/ogg.h>
#include <vorbis/codec.h>

#include <algorithm>
#include <cstring>

#include "base/result.h"

namespace lapidary {
namespace {

constexpr int kVorbisHeaders = 3;  // identification, comments, codebooks
constexpr std::string_view kVorbisMark = "\001vorbis";
constexpr size_t kReadBytes = 4096;

// Pages of a file in memory. A page lives until the next is asked for.
class OggPages {
 public:
  explicit OggPages(std::string_view file) : left_(file) { ogg_sync_init(&sync_); }
  ~OggPages() { ogg_sync_clear(&sync_); }
  OggPages(const OggPages&) = delete;
  OggPages& operator=(const OggPages&) = delete;

  // False: there is no further whole page. What lies between pages is skipped.
  bool Next(ogg_page* page) {
    for (;;) {
      const long synced = ogg_sync_pageseek(&sync_, page);
      if (synced > 0) return true;
      if (synced < 0) {
        skipped_ = true;
        continue;
      }
      const size_t count = std::min(left_.size(), kReadBytes);
      char* const buffer = ogg_sync_buffer(&sync_, static_cast<long>(count));
      if (count == 0 || buffer == nullptr) return false;
      std::memcpy(buffer, left_.data(), count);
      ogg_sync_wrote(&sync_, static_cast<long>(count));
      left_.remove_prefix(count);
    }
  }
  bool skipped() const { return skipped_; }

 private:
  std::string_view left_;  // not yet in `sync_`
  ogg_sync_state sync_ = {};
  bool skipped_ = false;
};

// Packets of the stream that begins with a page.
class OggPackets {
 public:
  OggPackets(OggPages* pages, ogg_page* first) : pages_(pages) {
    ogg_stream_init(&stream_, ogg_page_serialno(first));
    is_good_ = ogg_stream_pagein(&stream_, first) == 0;
  }
  ~OggPackets() { ogg_stream_clear(&stream_); }
  OggPackets(const OggPackets&) = delete;
  OggPackets& operator=(const OggPackets&) = delete;

  // False: the stream ends, or pages of it are missing.
  bool Next(ogg_packet* packet) {
    while (is_good_) {
      const int found = ogg_stream_packetout(&stream_, packet);
      if (found != 0) return found > 0;
      is_good_ = ReadPage();
    }
    return false;
  }
  bool HasMoreInPage() { return ogg_stream_packetpeek(&stream_, nullptr) != 0; }

 private:
  // The stream's next page. None follows one that says it is the last; a first one that says so is
  // not believed, as in libsndfile.
  bool ReadPage() {
    ogg_page page = {};
    do {
      if (is_last_ || !pages_->Next(&page)) return false;
    } while (ogg_page_serialno(&page) != stream_.serialno);
    is_last_ = ogg_page_eos(&page) != 0;
    return ogg_stream_pagein(&stream_, &page) == 0;
  }

  OggPages* pages_;
  ogg_stream_state stream_ = {};
  bool is_good_ = false;
  bool is_last_ = false;
};

class VorbisHeaders {
 public:
  VorbisHeaders() {
    vorbis_info_init(&info_);
    vorbis_comment_init(&comments_);
  }
  ~VorbisHeaders() {
    vorbis_comment_clear(&comments_);
    vorbis_info_clear(&info_);
  }
  VorbisHeaders(const VorbisHeaders&) = delete;
  VorbisHeaders& operator=(const VorbisHeaders&) = delete;

  bool Take(ogg_packet* packet) {
    return vorbis_synthesis_headerin(&info_, &comments_, packet) == 0;
  }

 private:
  vorbis_info info_ = {};
  vorbis_comment comments_ = {};
};

}  // namespace

Status CheckOggHeaders(std::string_view file) {
  OggPages pages(file);
  ogg_page page = {};
  if (!pages.Next(&page) || pages.skipped() || !ogg_page_bos(&page)) {
    return MakeError("the audio file's first Ogg page is broken");
  }
  const std::string_view body(reinterpret_cast<const char*>(page.body),
                              static_cast<size_t>(page.body_len));
  if (!body.starts_with(kVorbisMark)) return {};
  OggPackets packets(&pages, &page);
  VorbisHeaders headers;
  for (int idx = 0; idx < kVorbisHeaders; ++idx) {
    ogg_packet packet = {};
    const bool is_whole = packets.Next(&packet) && headers.Take(&packet);
    // The first header has its page to itself.
    if (!is_whole || (idx == 0 && (!packet.b_o_s || packets.HasMoreInPage()))) {
      return MakeError("the audio file's Vorbis headers are broken: number {} of {}", idx + 1,
                       kVorbisHeaders);
    }
  }
  return {};
}

}  // namespace lapidary
