#include "media/decode_audio.h"

#include <sndfile.h>
#include <soxr.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "media/ogg_headers.h"

namespace lapidary {
namespace {

constexpr int kMinRate = 1000;
constexpr int kMaxRate = 768000;
constexpr int kMaxChannels = 32;
constexpr sf_count_t kBlockFrames = 8192;
constexpr float kMaxSample = 1e4f;  // of files that hold floats; others end at 1

// What libsndfile reads: it steps over ID3 tags, whatever follows them.
std::string_view BehindId3Tags(std::string_view file) {
  // "ID3", version 2 to 4, revision, flags, four times 7 bits of size
  constexpr size_t kHeader = 10;
  while (file.size() > kHeader && file.starts_with("ID3") && file[3] >= 2 && file[3] <= 4) {
    size_t size = 0;
    for (size_t idx = 6; idx < kHeader; ++idx) {
      size = (size << 7) | (static_cast<unsigned char>(file[idx]) & 0x7f);
    }
    if (kHeader + size >= file.size()) break;
    file.remove_prefix(kHeader + size);
  }
  return file;
}

// A file in memory for libsndfile.
struct MemoryFile {
  std::string_view data;
  sf_count_t position = 0;
};

SF_VIRTUAL_IO MemoryIo() {
  SF_VIRTUAL_IO io = {};
  io.get_filelen = [](void* user) -> sf_count_t {
    return static_cast<sf_count_t>(static_cast<MemoryFile*>(user)->data.size());
  };
  io.seek = [](sf_count_t offset, int whence, void* user) -> sf_count_t {
    auto* file = static_cast<MemoryFile*>(user);
    const auto size = static_cast<sf_count_t>(file->data.size());
    const sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? file->position : size;
    if (offset < -base || offset > size - base) return -1;
    return file->position = base + offset;
  };
  io.read = [](void* out, sf_count_t count, void* user) -> sf_count_t {
    auto* file = static_cast<MemoryFile*>(user);
    const auto left = static_cast<sf_count_t>(file->data.size()) - file->position;
    count = std::clamp<sf_count_t>(count, 0, left);
    std::memcpy(out, file->data.data() + file->position, static_cast<size_t>(count));
    file->position += count;
    return count;
  };
  io.tell = [](void* user) { return static_cast<MemoryFile*>(user)->position; };
  io.write = [](const void*, sf_count_t, void*) -> sf_count_t { return 0; };
  return io;
}

using SoundFile = std::unique_ptr<SNDFILE, decltype([](SNDFILE* file) { sf_close(file); })>;
using Resampler = std::unique_ptr<soxr, decltype([](soxr_t resampler) { soxr_delete(resampler); })>;

// Appends blocks of mono samples at the tower's rate.
class Rate16kSink {
 public:
  static Result<Rate16kSink> Make(int rate) {
    Rate16kSink sink;
    if (rate == kAudioSampleRate) return sink;
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    soxr_error_t error = nullptr;
    sink.resampler_.reset(
        soxr_create(rate, kAudioSampleRate, 1, &error, nullptr, &quality, nullptr));
    if (error != nullptr) return MakeError("audio at {} Hz cannot be resampled: {}", rate, error);
    sink.ratio_ = static_cast<double>(kAudioSampleRate) / rate;
    return sink;
  }

  // An empty block ends the stream.
  void Append(const float* block, size_t count) {
    if (!resampler_) {
      samples_.insert(samples_.end(), block, block + count);
      return;
    }
    size_t done = 0;
    for (;;) {
      const size_t room = static_cast<size_t>(static_cast<double>(count - done) * ratio_) + 1024;
      const size_t begin = samples_.size();
      samples_.resize(begin + room);
      size_t consumed = 0;
      size_t produced = 0;
      const float* in = count == 0 ? nullptr : block + done;
      // It fails for want of memory alone.
      if (soxr_process(resampler_.get(), in, count - done, &consumed, samples_.data() + begin, room,
                       &produced) != nullptr) {
        throw std::bad_alloc();
      }
      samples_.resize(begin + produced);
      done += consumed;
      if (done == count && produced < room) return;
    }
  }

  std::vector<float> Take() { return std::move(samples_); }

 private:
  Resampler resampler_;  // null: the rate is right
  double ratio_ = 1.0;
  std::vector<float> samples_;
};

void MixDown(const float* frames, sf_count_t count, int channels, float* mono) {
  for (sf_count_t frame = 0; frame < count; ++frame) {
    float sum = 0.0f;
    for (int channel = 0; channel < channels; ++channel) sum += frames[frame * channels + channel];
    mono[frame] = sum / static_cast<float>(channels);
  }
}

bool AreSamples(std::span<const float> samples) {
  // Not a number is not below.
  return std::all_of(samples.begin(), samples.end(),
                     [](float sample) { return std::abs(sample) <= kMaxSample; });
}

}  // namespace

Result<std::vector<float>> DecodeAudio(std::string_view file, const AudioLimits& limits) {
  if (static_cast<int64_t>(file.size()) > limits.max_bytes) {
    return MakeError("the audio file has {} bytes; at most {} are taken", file.size(),
                     limits.max_bytes);
  }
  // The decoders' libraries do not all look whether they get memory: so there must be some now.
  constexpr size_t kDecoderBytes = size_t{4} << 20;
  ::operator delete(::operator new(kDecoderBytes));
  if (const std::string_view content = BehindId3Tags(file); content.starts_with("OggS")) {
    RETURN_IF_ERROR(CheckOggHeaders(content));
    file = content;
  }
  MemoryFile memory{file};
  SF_VIRTUAL_IO io = MemoryIo();
  SF_INFO info = {};
  const SoundFile sound(sf_open_virtual(&io, SFM_READ, &info, &memory));
  if (!sound) return MakeError("the audio file cannot be read: {}", sf_strerror(nullptr));
  if (info.channels < 1 || info.channels > kMaxChannels || info.samplerate < kMinRate ||
      info.samplerate > kMaxRate) {
    return MakeError("the audio file has {} channels at {} Hz; up to {} at {} to {} Hz are taken",
                     info.channels, info.samplerate, kMaxChannels, kMinRate, kMaxRate);
  }
  ASSIGN_OR_RETURN(Rate16kSink sink, Rate16kSink::Make(info.samplerate));
  const int64_t max_frames = int64_t{limits.max_seconds} * info.samplerate;
  std::vector<float> frames(static_cast<size_t>(kBlockFrames * info.channels));
  std::vector<float> mono(kBlockFrames);
  for (int64_t num_frames = 0;;) {
    const sf_count_t count = sf_readf_float(sound.get(), frames.data(), kBlockFrames);
    if (count <= 0) break;
    num_frames += count;
    if (num_frames > max_frames) {
      return MakeError("the audio is longer than {} seconds", limits.max_seconds);
    }
    MixDown(frames.data(), count, info.channels, mono.data());
    if (!AreSamples(std::span(mono).first(static_cast<size_t>(count)))) {
      return MakeError("the audio file holds samples that are no numbers, or far too large");
    }
    sink.Append(mono.data(), static_cast<size_t>(count));
  }
  if (sf_error(sound.get()) != SF_ERR_NO_ERROR) {
    return MakeError("the audio file cannot be decoded: {}", sf_strerror(sound.get()));
  }
  sink.Append(nullptr, 0);
  std::vector<float> samples = sink.Take();
  if (samples.empty()) return MakeError("the audio file has no samples");
  return samples;
}

}  // namespace lapidary
