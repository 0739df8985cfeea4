// The sign-in at an MCP server (its specification of 2025-06-18: OAuth 2.1 with PKCE): finds the
// authorisation server, registers the page there, opens its sign-in in a window of its own, and
// exchanges the code that comes back to this page for a token. It keeps nothing.

const CHANNEL = "atom-sign-in";
const ASK_MS = 15_000;
const SIGN_IN_MS = 600_000; // for the reader to sign in

// message: a sentence for the reader.
export class SignInError extends Error {}

const host = (address) => new URL(address).origin;
const own = () => location.origin + location.pathname;

// Returns {issuer, resource, scope} of a server that answers 401, by RFC 9728; null if it names no
// sign-in. challenge: its header WWW-Authenticate, if it shows that to pages.
export async function signInOf(url, challenge) {
  const { origin, pathname } = new URL(url);
  const named = /resource_metadata="([^"]+)"/.exec(challenge ?? "")?.[1];
  const usual = [pathname.replace(/\/$/, ""), ""].map((path) => `${origin}/.well-known/oauth-protected-resource${path}`);
  for (const address of new Set([named, ...usual])) {
    if (!URL.canParse(address) || host(address) !== origin) continue;
    const told = await json(address).catch(() => null);
    const issuer = told?.authorization_servers?.[0];
    if (!URL.canParse(issuer)) continue;
    const resource = URL.canParse(told.resource) && host(told.resource) === origin ? told.resource : url;
    const scope = /scope="([^"]+)"/.exec(challenge ?? "")?.[1] ?? (told.scopes_supported ?? []).join(" ");
    return { issuer, resource, scope };
  }
  return null;
}

// Lets the reader sign in. popup: a window that a click has opened. Returns the tokens, as `renewed`
// takes them. Throws SignInError.
export async function signIn({ issuer, resource, scope }, popup) {
  try {
    if (!globalThis.crypto?.subtle) throw new SignInError(`Signing in needs this page by HTTPS, or at localhost: browsers compute no proof at ${location.origin}.`);
    if (!popup) throw new SignInError("The browser opened no window for the sign-in: allow pop-ups of this page.");
    const server = await serverOf(issuer);
    const client = await register(server, scope);
    const [verifier, state] = [random(), random()];
    const asked = { response_type: "code", client_id: client, redirect_uri: own(), state, code_challenge: await digest(verifier), code_challenge_method: "S256", resource };
    const address = new URL(server.authorization_endpoint);
    for (const [name, value] of Object.entries(scope ? { ...asked, scope } : asked)) address.searchParams.set(name, value);
    const came = returned(state);
    popup.location = address.href;
    const found = await came;
    if (found.iss !== undefined && found.iss !== server.issuer) throw new SignInError(`The sign-in answers for ${found.iss}, and ${issuer} was asked.`);
    if (!found.code) throw new SignInError(`${host(issuer)} lets nobody in: ${found.error_description ?? found.error ?? "it gives no reason"}`);
    return await tokens({ client, endpoint: server.token_endpoint, resource }, { grant_type: "authorization_code", code: found.code, redirect_uri: own(), code_verifier: verifier });
  } finally {
    popup?.close();
  }
}

// Returns new tokens in place of those whose access token has ended; null if a new sign-in is needed.
export async function renewed(kept) {
  if (!kept?.refresh) return null;
  return tokens(kept, { grant_type: "refresh_token", refresh_token: kept.refresh }).catch(() => null);
}

// Hands a sign-in's answer to the page that waits for it, in the window to which it came back.
export function finishSignIn() {
  const found = Object.fromEntries(new URLSearchParams(location.search));
  if (!found.state || !(found.code || found.error)) return;
  history.replaceState(null, "", location.pathname);
  const channel = new BroadcastChannel(CHANNEL);
  channel.postMessage(found);
  channel.close();
  window.close();
}

// Returns the endpoints of an authorisation server, by RFC 8414 or OpenID Connect.
async function serverOf(issuer) {
  const { origin, pathname } = new URL(issuer);
  const path = pathname.replace(/\/$/, "");
  const addresses = [`${origin}/.well-known/oauth-authorization-server${path}`, `${origin}/.well-known/openid-configuration${path}`, `${origin}${path}/.well-known/openid-configuration`];
  let reached = false;
  for (const address of addresses) {
    const told = await json(address).catch((error) => {
      reached ||= error instanceof SignInError;
      return null;
    });
    if (!told) continue;
    if (told.issuer?.replace(/\/$/, "") !== issuer.replace(/\/$/, "")) throw new SignInError(`${origin} describes the sign-in of ${told.issuer}, and not of ${issuer}.`);
    if (![told.authorization_endpoint, told.token_endpoint].every((each) => URL.canParse(each) && /^https?:$/.test(new URL(each).protocol))) throw new SignInError(`${issuer} has no sign-in for pages.`);
    if (!told.code_challenge_methods_supported?.includes("S256")) throw new SignInError(`${issuer} takes no proof of the page that asks (PKCE, S256).`);
    return told;
  }
  if (reached) throw new SignInError(`${issuer} does not describe its sign-in (RFC 8414).`);
  throw new SignInError(`${origin} cannot be asked for a sign-in: whoever runs this server can allow it with --page-mcp-hosts ${origin}, and its CORS rules must allow ${location.origin}.`);
}

// Makes this page a client of the authorisation server, by RFC 7591. Returns the client's id.
async function register(server, scope) {
  if (!server.registration_endpoint) throw new SignInError(`${host(server.issuer)} takes no page that it does not know: get an access token there, and give it as the server's key.`);
  const client = {
    client_name: "ATOM page", redirect_uris: [own()], grant_types: ["authorization_code", "refresh_token"], response_types: ["code"], token_endpoint_auth_method: "none",
  };
  const told = await json(server.registration_endpoint, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(scope ? { ...client, scope } : client),
  });
  if (typeof told.client_id !== "string") throw new SignInError(`${host(server.issuer)} gives this page no id.`);
  return told.client_id;
}

async function tokens({ client, endpoint, resource, refresh }, asked) {
  const told = await json(endpoint, { method: "POST", body: new URLSearchParams({ ...asked, client_id: client, resource }) });
  if (typeof told.access_token !== "string" || told.token_type?.toLowerCase() !== "bearer") throw new SignInError(`${host(endpoint)} gives no token that this page can use.`);
  return { client, endpoint, resource, access: told.access_token, refresh: told.refresh_token ?? refresh };
}

// Waits for the answer of the sign-in with this state.
function returned(state) {
  return new Promise((resolve, reject) => {
    const channel = new BroadcastChannel(CHANNEL);
    const end = (settle, value) => {
      channel.close();
      clearTimeout(late);
      settle(value);
    };
    const late = setTimeout(() => end(reject, new SignInError("The sign-in was not completed.")), SIGN_IN_MS);
    channel.onmessage = ({ data }) => data?.state === state && end(resolve, data);
  });
}

async function json(address, options = {}) {
  const response = await fetch(address, { ...options, credentials: "omit", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(ASK_MS) });
  const told = await response.json().catch(() => null);
  if (!response.ok || !told) throw new SignInError(`${host(address)} refuses (${response.status}): ${told?.error_description ?? told?.error ?? "without a reason"}`);
  return told;
}

const encoded = (bytes) => btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const random = () => encoded(crypto.getRandomValues(new Uint8Array(32)));
const digest = async (text) => encoded(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text))));
