// --- conversations, as the browser keeps them ---------------------------------------------------------

// What is stored may be from an older page or another hand.
function readMessage(raw) {
  const parts = Array.isArray(raw?.content) ? raw.content : null;
  const text = parts ? parts.map((part) => asText(part?.text)).filter(Boolean).join('\n') : asText(raw?.content);
  const message = {role: asText(raw?.role), content: text};
  if (message.role === 'user') {
    const media = parts ? mediaOfParts(parts) : readMedia(raw.media);
    if (media.length) message.media = media;
    const files = readFiles(raw.files);
    if (files.length) message.files = files;
  }
  if (message.role === 'tool') {
    message.tool_call_id = asText(raw.tool_call_id);
    message.name = asText(raw.name);
  } else if (message.role === 'assistant') {
    for (const name of ['reasoning', 'note', 'error', 'stats']) message[name] = asText(raw[name]);
    if (raw.running) message.note = 'Broken off: the page was closed.';
    message.thinkingSeconds = Number(raw.thinkingSeconds) || 0;
    message.contextTokens = Number(raw.contextTokens) || 0;
    message.tool_calls = (Array.isArray(raw.tool_calls) ? raw.tool_calls : []).map((call) =>
      ({id: asText(call?.id), name: asText(call?.name), arguments: asText(call?.arguments)}));
  } else if (message.role !== 'user') {
    return null;
  }
  return message;
}

// --- versions of a message ---

// An answer may be made again and a question asked anew: both stay, each with all that followed it.
// message.versions = {at, tails}: tails[at] is null, for it is the message itself and what the conversation goes on with;
// each other tail is a list of messages that begins with another version.
const DEEPEST_VERSIONS = 40;  // within each other

function readMessages(list, depth = 0) {
  const messages = [];
  for (const raw of list) {
    const message = readMessage(raw);
    if (!message) continue;
    const versions = depth < DEEPEST_VERSIONS ? readVersions(raw.versions, depth) : null;
    if (versions) message.versions = versions;
    messages.push(message);
  }
  return messages;
}

function readVersions(raw, depth) {
  if (!Array.isArray(raw?.tails)) return null;
  const versions = {at: -1, tails: []};
  for (const [idx, tail] of raw.tails.entries()) {
    const messages = idx === raw.at ? null : readMessages(Array.isArray(tail) ? tail : [], depth + 1);
    if (messages?.length === 0) continue;
    if (!messages) versions.at = versions.tails.length;
    versions.tails.push(messages);
  }
  return versions.at >= 0 && versions.tails.length > 1 ? versions : null;
}

// Takes the message and what follows it out of the conversation. The result is for the message that comes in its place.
function startVersion({messages}, message) {
  const versions = message.versions ?? {at: 0, tails: [null]};
  delete message.versions;
  versions.tails[versions.at] = messages.splice(messages.indexOf(message));
  versions.at = versions.tails.push(null) - 1;
  return versions;
}

// The message that the conversation has in its place afterwards.
function switchVersion({messages}, message, at) {
  const {versions} = message;
  const begin = messages.indexOf(message);
  delete message.versions;
  versions.tails[versions.at] = messages.splice(begin);
  for (const other of versions.tails[at]) messages.push(other);
  versions.tails[at] = null;
  versions.at = at;
  messages[begin].versions = versions;
  return messages[begin];
}

// Its neighbour comes in its place.
function dropVersion(conversation, message) {
  const {at, tails} = message.versions;
  const head = switchVersion(conversation, message, at > 0 ? at - 1 : 1);
  tails.splice(at, 1);
  if (at === 0) head.versions.at = 0;
  if (tails.length < 2) delete head.versions;
}

function readConversation(id, raw) {
  if (!raw || !Array.isArray(raw.messages)) return null;
  return {id, title: asText(raw.title), changed: Number(raw.changed) || 0, settings: readSettings(raw.settings),
          messages: readMessages(raw.messages)};
}

const conversations = new Map();  // id -> conversation
const runs = new Map();           // conversation -> the answer that is being written
let current = null;
let isLeaving = false;

function loadConversations() {
  const busy = [...runs.keys(), ...[...calling.values()].map(({conversation}) => conversation)];
  const kept = new Map(busy.map((conversation) => [conversation.id, conversation]));
  conversations.clear();
  for (const key of store.keys()) {
    if (!key.startsWith('conversation.')) continue;
    const id = key.slice('conversation.'.length);
    const conversation = kept.get(id) ?? readConversation(id, parseJson(store.get(key)));
    if (conversation) conversations.set(id, conversation);
  }
}

function save(conversation) {
  if (!conversation.messages.length) return;
  conversation.changed = Date.now();
  conversations.set(conversation.id, conversation);
  store.set('conversation.' + conversation.id, JSON.stringify(conversation));
  if (conversation === current) store.set('current', conversation.id);
}

function newConversation() {
  const settings = readSettings(current?.settings ?? parseJson(store.get('settings')));
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  return {id, title: '', changed: 0, settings, messages: []};
}

function forget(conversation) {
  runs.get(conversation)?.controller.abort();
  for (const call of calling.values()) if (call.conversation === conversation) call.controller.abort();
  conversations.delete(conversation.id);
  store.remove('conversation.' + conversation.id);
}
