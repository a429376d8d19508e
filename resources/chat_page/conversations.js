// --- conversations, as the browser keeps them ---------------------------------------------------------

// What is stored may be from an older page or another hand.
function readMessage(raw) {
  const parts = Array.isArray(raw?.content) ? raw.content : null;
  const text = parts ? parts.map((part) => asText(part?.text)).filter(Boolean).join('\n') : asText(raw?.content);
  const message = {role: asText(raw?.role), content: text};
  if (message.role === 'user') {
    const media = parts ? mediaOfParts(parts) : readMedia(raw.media);
    if (media.length) message.media = media;
  }
  if (message.role === 'tool') {
    message.tool_call_id = asText(raw.tool_call_id);
    message.name = asText(raw.name);
  } else if (message.role === 'assistant') {
    for (const name of ['reasoning', 'note', 'error', 'stats']) message[name] = asText(raw[name]);
    if (raw.running) message.note = 'Broken off: the page was closed.';
    message.thinkingSeconds = Number(raw.thinkingSeconds) || 0;
    message.tool_calls = (Array.isArray(raw.tool_calls) ? raw.tool_calls : []).map((call) =>
      ({id: asText(call?.id), name: asText(call?.name), arguments: asText(call?.arguments)}));
  } else if (message.role !== 'user') {
    return null;
  }
  return message;
}

function readConversation(id, raw) {
  if (!raw || !Array.isArray(raw.messages)) return null;
  return {id, title: asText(raw.title), changed: Number(raw.changed) || 0, settings: readSettings(raw.settings),
          messages: raw.messages.map(readMessage).filter(Boolean)};
}

const conversations = new Map();  // id -> conversation
const runs = new Map();           // conversation -> the answer that is being written
let current = null;
let isLeaving = false;

function loadConversations() {
  const kept = new Map([...runs.keys()].map((conversation) => [conversation.id, conversation]));
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
  conversations.delete(conversation.id);
  store.remove('conversation.' + conversation.id);
}
