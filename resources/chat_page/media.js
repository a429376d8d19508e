// --- Images and audio: data: URIs with a name ------------------------------------------------------------

const MEDIUM = /^data:(image|audio)\/([\w.+-]+);base64,[A-Za-z0-9+/]*={0,2}$/;
const MOST_PIXELS = 1600;    // along a side: more than a model sees of a square picture
const MOST_BYTES = 1 << 20;  // of a picture that is sent as it is
const TAKEN = ['image/jpeg', 'image/png', 'image/webp'];

const kindOf = (url) => MEDIUM.exec(url)?.[1];

function readMedia(list) {
  return (Array.isArray(list) ? list : []).map((raw) => ({url: asText(raw?.url), name: asText(raw?.name)}))
    .filter(({url}) => kindOf(url));
}

// OpenAI's content parts, as they are sent and exported.
const partOf = ({url}) => (kindOf(url) === 'image' ? {type: 'image_url', image_url: {url}} :
  {type: 'input_audio', input_audio: {data: url.slice(url.indexOf(',') + 1), format: MEDIUM.exec(url)[2].replace('x-', '')}});

function mediaOfParts(parts) {
  return readMedia(parts.map((part) => (part?.type === 'input_audio' ?
    {url: `data:audio/${asText(part.input_audio?.format) || 'wav'};base64,${asText(part.input_audio?.data)}`} :
    {url: part?.image_url?.url ?? part?.image_url})));
}

const dataUri = (blob) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(blob);
});

// A file as it goes with a message; large pictures are made smaller, kinds that servers do not know are drawn anew.
async function readMedium(file) {
  const name = file.name || 'pasted';
  if (file.type.startsWith('audio/')) return {url: await dataUri(file), name};
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, MOST_PIXELS / Math.max(picture.width, picture.height));
  if (scale === 1 && file.size <= MOST_BYTES && TAKEN.includes(file.type)) return {url: await dataUri(file), name};
  const canvas = el('canvas', {width: Math.round(scale * picture.width), height: Math.round(scale * picture.height)});
  canvas.getContext('2d').drawImage(picture, 0, 0, canvas.width, canvas.height);
  return {url: canvas.toDataURL('image/jpeg', 0.92), name};
}

function mediumNode({url, name}) {
  if (kindOf(url) === 'image') return el('img', {src: url, alt: name || 'An image'});
  return el('audio', {src: url, controls: true, 'aria-label': name || 'Audio'});
}
