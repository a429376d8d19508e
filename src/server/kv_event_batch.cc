#include "server/kv_event_batch.h"

#include "server/media_identifier.h"
#include "server/msgpack.h"

namespace lapidary {
namespace {

// Whatever the device: the memory that steps read. Others mean a tier below it.
constexpr const char* kMedium = "GPU";

void WriteHashes(std::span<const uint64_t> hashes, MsgpackWriter& writer) {
  writer.Text("block_hashes");
  writer.Array(hashes.size());
  for (const uint64_t hash : hashes) writer.Unsigned(hash);
}

void WriteExtra(const BlockEvent::Extra& extra, MsgpackWriter& writer) {
  const size_t num_keys = extra.media.size() + (extra.salt.empty() ? 0 : 1);
  if (num_keys == 0) return writer.Nil();
  writer.Array(num_keys);
  for (const MediaDigest& medium : extra.media) {
    writer.Array(2);
    writer.Text(MediaIdentifier(medium));
    writer.Int(medium.position - extra.start);
  }
  if (!extra.salt.empty()) writer.Text(extra.salt);
}

void WriteStored(const BlockEvent& event, int block_size, MsgpackWriter& writer) {
  writer.Map(11);
  writer.Text("type");
  writer.Text("BlockStored");
  WriteHashes(event.hashes, writer);
  writer.Text("parent_block_hash");
  if (event.parent) {
    writer.Unsigned(*event.parent);
  } else {
    writer.Nil();
  }
  writer.Text("token_ids");
  writer.Array(event.tokens.size());
  for (const int32_t token : event.tokens) writer.Int(token);
  writer.Text("block_size");
  writer.Int(block_size);
  writer.Text("lora_id");
  writer.Nil();
  writer.Text("medium");
  writer.Text(kMedium);
  writer.Text("lora_name");
  writer.Nil();
  writer.Text("extra_keys");
  writer.Array(event.extras.size());
  for (const BlockEvent::Extra& extra : event.extras) WriteExtra(extra, writer);
  writer.Text("group_idx");
  writer.Int(0);
  writer.Text("kv_cache_spec_kind");
  writer.Text("full_attention");
}

void WriteRemoved(const BlockEvent& event, MsgpackWriter& writer) {
  writer.Map(4);
  writer.Text("type");
  writer.Text("BlockRemoved");
  WriteHashes(event.hashes, writer);
  writer.Text("medium");
  writer.Text(kMedium);
  writer.Text("group_idx");
  writer.Int(0);
}

}  // namespace

std::string EncodeKvEvents(double seconds, std::span<const BlockEvent> events, int block_size) {
  MsgpackWriter writer;
  writer.Array(3);
  writer.Double(seconds);
  writer.Array(events.size());
  for (const BlockEvent& event : events) {
    switch (event.kind) {
      case BlockEvent::Kind::kStored:
        WriteStored(event, block_size, writer);
        break;
      case BlockEvent::Kind::kRemoved:
        WriteRemoved(event, writer);
        break;
      case BlockEvent::Kind::kCleared:
        writer.Map(1);
        writer.Text("type");
        writer.Text("AllBlocksCleared");
    }
  }
  writer.Int(0);  // One server is one rank.
  return writer.bytes();
}

}  // namespace lapidary
