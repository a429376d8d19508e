// --- tools through MCP over HTTP ------------------------------------------------------------------------

// The page calls the servers itself. It may reach those alone that its Content-Security-Policy names, which are those of
// the flag --mcp-servers; each is off until the user switches it on.
const MCP_VERSIONS = ['2025-11-25', '2025-06-18', '2025-03-26'];  // of the protocol, the first is asked for
const MCP_SECONDS = 60;           // for one message
const MOST_MCP_REPLY = 4 << 20;   // characters
const MOST_MCP_PAGES = 20;        // of a list of tools
const MOST_MCP_TOOLS = 200;       // of one server
const MOST_RESULT = 100000;       // characters of a result that the model is given

class McpServer {
  constructor(url) {
    this.url = url;
    this.disconnect();
  }

  disconnect() {
    this.tools = [];
    this.session = '';
    this.version = '';
    this.problem = '';
    this.connecting = null;
  }

  // Never throws: `problem` says what went wrong.
  connect() {
    this.disconnect();
    const connecting = this.handshake().catch((error) => error.message).then((problem) => {
      if (this.connecting !== connecting) return;  // switched off or on again meanwhile
      this.problem = problem ?? '';
      this.connecting = null;
    });
    this.connecting = connecting;
    return connecting;
  }

  async handshake() {
    const begun = await this.ask('initialize', {protocolVersion: MCP_VERSIONS[0], capabilities: {},
                                                clientInfo: {name: 'lapidary-chat-page', version: '1'}});
    if (!MCP_VERSIONS.includes(begun.protocolVersion)) {
      throw new Error(`It speaks the version ${asText(begun.protocolVersion)} of MCP, which this page does not know.`);
    }
    this.version = begun.protocolVersion;
    await this.post({method: 'notifications/initialized'});
    const tools = [];
    let cursor;
    for (let page = 0; page < MOST_MCP_PAGES && tools.length < MOST_MCP_TOOLS; ++page) {
      const {tools: list, nextCursor} = await this.ask('tools/list', cursor ? {cursor} : {});
      const isTool = (tool) => isObject(tool) && asText(tool.name) && isObject(tool.inputSchema ?? {});
      tools.push(...(Array.isArray(list) ? list.filter(isTool) : []));
      cursor = asText(nextCursor);
      if (!cursor) break;
    }
    this.tools = tools.slice(0, MOST_MCP_TOOLS);
  }

  async ask(method, params, signal = null) {
    return this.post({id: ++McpServer.lastId, method, params}, signal);
  }

  // The result that the server gives a message, null for a notification. Throws a sentence.
  async post(message, signal = null) {
    const headers = {'Content-Type': 'application/json', Accept: 'application/json, text/event-stream'};
    if (this.version) headers['MCP-Protocol-Version'] = this.version;
    if (this.session) headers['Mcp-Session-Id'] = this.session;
    const timeout = AbortSignal.timeout(1000 * MCP_SECONDS);
    try {
      const response = await fetch(this.url, {
        method: 'POST', headers, body: JSON.stringify({jsonrpc: '2.0', ...message}), credentials: 'omit', redirect: 'error',
        referrerPolicy: 'no-referrer', cache: 'no-store', signal: signal ? AbortSignal.any([signal, timeout]) : timeout});
      this.session = response.headers.get('mcp-session-id') || this.session;
      if (!response.ok) {
        const said = asText(parseJson(await wholeText(response))?.error?.message).slice(0, 300);
        throw new ServerError(response.status, sentence(`it answered with the status ${response.status}${said && ': ' + said}`));
      }
      if (message.id === undefined) return null;
      return await readReply(response, message.id);
    } catch (error) {
      if (error instanceof ServerError) throw error;
      if (timeout.aborted) throw new Error(`It did not answer within ${MCP_SECONDS} seconds.`);
      throw new Error(`It cannot be reached. Is it running, and does it let pages of ${location.origin} call it (CORS)?`);
    }
  }

  // The text of a tool's result; a tool that failed says so to the model.
  async call(name, values, signal) {
    if (this.connecting) await this.connecting;
    let result;
    try {
      result = await this.ask('tools/call', {name, arguments: values}, signal);
    } catch (error) {
      if (error.status !== 404 || !this.session) throw error;
      await this.connect();  // The session is over: a new one.
      if (this.problem) throw new Error(this.problem);
      result = await this.ask('tools/call', {name, arguments: values}, signal);
    }
    const parts = (Array.isArray(result.content) ? result.content : []).map((part) =>
      asText(part?.text) || asText(part?.resource?.text) || asText(part?.uri) || `[${asText(part?.type) || 'something'}, left out]`);
    let text = parts.join('\n') || (result.structuredContent === undefined ? '' : JSON.stringify(result.structuredContent));
    if (text.length > MOST_RESULT) text = text.slice(0, MOST_RESULT) + `\n[cut after ${MOST_RESULT} characters]`;
    return result.isError === true ? 'Error: ' + text : text;
  }
}
McpServer.lastId = 0;

// What a reply says to the message `id`; it may come as JSON or as the events of a stream, other messages among them.
async function readReply(response, id) {
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream');
  for await (const data of isStream ? events(response, MOST_MCP_REPLY) : [await wholeText(response)]) {
    const reply = [parseJson(data)].flat().find((one) => one?.id === id && (isObject(one.result) || one.error));
    if (reply?.error) throw new ServerError(0, sentence(asText(reply.error.message) || 'it failed'));
    if (reply) return reply.result;
  }
  throw new ServerError(0, 'Its reply is no answer to what it was asked.');
}

async function wholeText(response) {
  let text = '';
  for await (const piece of pieces(response, MOST_MCP_REPLY)) text += piece;
  return text;
}

let mcpServers = [];           // that the policy lets through
const mcpIsOn = new Set();     // their URLs
let mcpLoading = null;         // until the list is read and those that are on are connected
const connectedServers = () => mcpServers.filter((server) => mcpIsOn.has(server.url) && !server.connecting);

// name -> {server, tool}. A name belongs to the user's own function first, then to the first server that has it.
function mcpTools(conversation) {
  const own = new Set(readTools(conversation.settings.tools).tools.map((tool) => tool.function.name));
  const tools = new Map();
  for (const server of connectedServers()) {
    for (const tool of server.tools) {
      const name = tool.name.replace(/[^\w.-]/g, '_').slice(0, 64);
      if (!own.has(name) && !tools.has(name)) tools.set(name, {server, tool});
    }
  }
  return tools;
}

function mcpFunctions(conversation) {
  return [...mcpTools(conversation)].map(([name, {tool}]) => {
    const parameters = tool.inputSchema ?? {type: 'object', properties: {}};
    return {type: 'function', function: {name, description: asText(tool.description) || asText(tool.title), parameters}};
  });
}

// Until every server that is on is connected or has failed, or `signal` says stop.
async function mcpConnected(signal) {
  const connecting = [mcpLoading, ...mcpServers.map((server) => server.connecting)];
  const stopped = new Promise((resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
  await Promise.race([Promise.all(connecting), stopped]);
}

function showMcp() {
  byId('mcp-none').hidden = mcpServers.length > 0;
  byId('mcp-note').hidden = !mcpServers.length;
  const focused = [...byId('mcp-servers').querySelectorAll('input')].indexOf(document.activeElement);
  byId('mcp-servers').replaceChildren(...mcpServers.map((server) => {
    const isOn = mcpIsOn.has(server.url);
    const names = server.tools.map((tool) => tool.name).join(', ');
    const state = !isOn ? '' : server.connecting ? 'Connecting…' : server.problem || (names ? 'Offers ' + names : 'Offers no tools');
    const box = el('input', {type: 'checkbox', checked: isOn, onchange: ({target}) => switchMcp(server, target.checked)});
    return el('div', {class: 'mcp-server'}, el('label', {class: 'switch'}, box, el('span', {}, server.url)),
              el('small', {class: server.problem && isOn ? 'problem' : ''}, state));
  }));
  byId('mcp-servers').querySelectorAll('input')[focused]?.focus();
}

async function connectMcp(server) {
  const connected = server.connect();
  showMcp();
  await connected;
  showMcp();
  for (const message of current.messages) if (message.tool_calls?.length) refreshCalls(message);
}

function switchMcp(server, isOn) {
  if (isOn) mcpIsOn.add(server.url); else mcpIsOn.delete(server.url);
  store.set('mcp', JSON.stringify([...mcpIsOn]));
  if (isOn) return connectMcp(server);
  server.disconnect();
  showMcp();
  for (const message of current.messages) if (message.tool_calls?.length) refreshCalls(message);
}

async function loadMcp() {
  let policy = '';
  try {
    const {headers} = await fetch(location.pathname, {method: 'HEAD', cache: 'no-store', redirect: 'error'});
    policy = headers.get('content-security-policy') ?? '';
  } catch { /* loadModels tells that the server is gone */ }
  const connects = policy.split(';').map((part) => part.trim().split(/\s+/)).find(([name]) => name === 'connect-src') ?? [];
  mcpServers = connects.filter((source) => /^https?:\/\//.test(source)).map((url) => new McpServer(url));
  const wanted = parseJson(store.get('mcp') ?? '');
  for (const {url} of mcpServers) if (Array.isArray(wanted) && wanted.includes(url)) mcpIsOn.add(url);
  showMcp();
  await Promise.all(mcpServers.filter(({url}) => mcpIsOn.has(url)).map(connectMcp));
}
